//! The shop's other half: what happens when an event arrives.

use std::sync::Arc;

use pillarbox::{Delivery, HandlerError, Route};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    ledger::{Ledger, Place, Step, What},
    plan::Fate,
};

pub(super) const ORDER: &str = "Order";
pub(super) const SIGNUP: &str = "NewsletterSignup";

/// The payload of an order's event.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(super) struct OrderEvent {
    pub(super) order: u32,
    pub(super) customer: u32,
    /// The how many-th event of this customer it is.
    pub(super) nth: u32,
    pub(super) total_cents: i64,
    pub(super) fate: Fate,
}

/// The payload of a signup: nothing comes before or after it, so it has no key.
#[derive(Debug, Serialize, serde::Deserialize)]
pub(super) struct SignupEvent {
    pub(super) signup: u32,
    pub(super) email: String,
    pub(super) fate: Fate,
}

/// The handlers of one run.
#[derive(Clone, Debug)]
pub(super) struct Handlers {
    run: Arc<str>,
    ledger: Arc<Ledger>,
}

impl Handlers {
    pub(super) fn new(run: &str, ledger: Arc<Ledger>) -> Self {
        Self { run: run.into(), ledger }
    }

    pub(super) fn route(step: Step) -> Route {
        Route::new(ORDER, step.event_type())
    }

    /// Deals with a step of an order.
    pub(super) fn order(&self, step: Step, delivery: &Delivery) -> Result<(), HandlerError> {
        let Some(event) = self.read::<OrderEvent>(delivery)? else {
            return Ok(());
        };
        let place = Place { customer: event.customer, nth: event.nth };
        let trouble = match step {
            Step::Placed => "the mail server does not answer",
            Step::Paid => "the billing service is overloaded",
            Step::Shipped => "the carrier's API timed out",
        };
        self.attempt(delivery, What::Order(event.order, step), Some(place), event.fate, trouble)
    }

    /// Adds an address to the newsletter.
    pub(super) fn signup(&self, delivery: &Delivery) -> Result<(), HandlerError> {
        let Some(event) = self.read::<SignupEvent>(delivery)? else {
            return Ok(());
        };
        self.attempt(delivery, What::Signup(event.signup), None, event.fate, "the list is locked")
    }

    fn attempt(
        &self,
        delivery: &Delivery,
        what: What,
        place: Option<Place>,
        fate: Fate,
        trouble: &str,
    ) -> Result<(), HandlerError> {
        if self.ledger.attempt(delivery.event().id(), what, place, fate) {
            return Ok(());
        }
        match fate {
            Fate::Invalid => Err(HandlerError::msg("the address does not exist (planned)").permanent()),
            Fate::Fine | Fate::Flaky(_) | Fate::Hopeless => Err(HandlerError::msg(format!("{trouble} (planned)"))),
        }
    }

    /// The payload, unless an earlier run left the event behind: that one is only counted.
    fn read<T: DeserializeOwned>(&self, delivery: &Delivery) -> Result<Option<T>, HandlerError> {
        if delivery.event().tenant_id() != Some(&*self.run) {
            self.ledger.leftover();
            return Ok(None);
        }
        // What can't be read today can't be read tomorrow.
        let payload = delivery.event().payload().to();
        payload.map(Some).map_err(|error| HandlerError::from(error).permanent())
    }
}
