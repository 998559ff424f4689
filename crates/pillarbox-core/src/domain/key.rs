//! Names: the type of an event, of its aggregate, the route they form, and the ordering key.

use std::{borrow::Borrow, fmt, sync::Arc};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        // Strings and users' enums (through `AsRef<str>`) name the same thing in the same way.
        impl<T: AsRef<str>> From<T> for $name {
            fn from(name: T) -> Self {
                Self(Arc::from(name.as_ref()))
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// What happened, such as `OrderPlaced`. Made from a string or from anything that is `AsRef<str>`,
    /// which lets an enum of one's own name event types.
    EventType
}

name! {
    /// What it happened to, such as `Order`. Events without one belong to [`AggregateType::GLOBAL`].
    AggregateType
}

name! {
    /// The ordering key. Events with one key are delivered one after another in the order in which they
    /// were written.
    Key
}

impl AggregateType {
    /// The aggregate type of events that name none.
    pub const GLOBAL: &'static str = "__GLOBAL__";
}

impl Default for AggregateType {
    fn default() -> Self {
        Self::from(Self::GLOBAL)
    }
}

/// Where an event goes: the pair of aggregate type and event type.
///
/// The two are kept apart, so `("a:b", "c")` and `("a", "b:c")` are two routes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The aggregate type; [`AggregateType::GLOBAL`] for events that name none.
    pub aggregate: AggregateType,
    /// The event type.
    pub event: EventType,
}

impl Route {
    /// The route of events of this aggregate type and event type.
    pub fn new(aggregate: impl Into<AggregateType>, event: impl Into<EventType>) -> Self {
        Self { aggregate: aggregate.into(), event: event.into() }
    }

    /// The route of events of this type that name no aggregate.
    pub fn global(event: impl Into<EventType>) -> Self {
        Self::new(AggregateType::GLOBAL, event)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({:?}, {:?})", self.aggregate.as_str(), self.event.as_str())
    }
}

/// A lone event type is the route of events without an aggregate.
impl From<&str> for Route {
    fn from(event: &str) -> Self {
        Self::global(event)
    }
}

impl<A: Into<AggregateType>, E: Into<EventType>> From<(A, E)> for Route {
    fn from((aggregate, event): (A, E)) -> Self {
        Self::new(aggregate, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Shop {
        Order,
        Placed,
    }

    impl AsRef<str> for Shop {
        fn as_ref(&self) -> &str {
            match self {
                Self::Order => "Order",
                Self::Placed => "Placed",
            }
        }
    }

    #[test]
    fn strings_and_enums_name_the_same_route() {
        assert_eq!(Route::new("Order", "Placed"), Route::new(Shop::Order, Shop::Placed));
        assert_eq!(Route::from(("Order", String::from("Placed"))), (Shop::Order, Shop::Placed).into());
        assert_eq!(Route::from("Placed"), Route::new("__GLOBAL__", Shop::Placed));
    }

    #[test]
    fn a_separator_inside_a_name_makes_no_collision() {
        let routes = [Route::new("a:b", "c"), Route::new("a", "b:c")];
        assert_ne!(routes[0], routes[1]);
        assert_ne!(routes[0].to_string(), routes[1].to_string());
    }
}
