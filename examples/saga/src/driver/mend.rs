//! The person who looks after the dead letters of the payment service: thaws an account, and replays what failed because of it.

use std::{path::Path, time::Duration};

use pillarbox::{
    Actor, SqliteStore,
    inbox::{DeadLetters, Error},
    port::{LetterQuery, LetterStatus},
};
use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};

use super::crew::Ground;
use crate::{
    Failure,
    plan::{Frozen, Plan},
    service::dead_letters,
};

pub(super) struct Mender {
    letters: DeadLetters,
    account: SqliteConnection,
}

impl Mender {
    pub(super) async fn new(ground: &Ground) -> Result<Self, Failure> {
        let file = ground.folder.join("payment.db");
        let store = SqliteStore::open(file.display().to_string()).await?;
        let letters = dead_letters(&store, &ground.nats, &ground.stream)?;
        Ok(Self { letters, account: connect(&file).await? })
    }

    /// Thaws the accounts of this kind that payments have failed because of, and replays those. How many.
    pub(super) async fn mend(&mut self, plan: &Plan, kind: Frozen) -> Result<u32, Failure> {
        let actor = Actor::new("driver").because("the account is thawed");
        let pending = LetterQuery { status: Some(LetterStatus::Pending), ..LetterQuery::default() };
        let mut replayed = 0;
        for letter in self.letters.list(&pending, None, 1_000).await? {
            let order = letter.saga_id.as_deref().and_then(|id| plan.order(id));
            let Some(order) = order.filter(|order| plan.accounts[&order.customer].frozen == kind) else { continue };
            let thaw = sqlx::query("update account set frozen = 0 where customer = ?").bind(&order.customer);
            thaw.execute(&mut self.account).await?;
            match self.letters.replay(&letter.id, &actor).await {
                Ok(()) => replayed += 1,
                // It has failed too often for another reason, which the verdict names.
                Err(Error::TooManyReplays { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(replayed)
    }
}

async fn connect(file: &Path) -> Result<SqliteConnection, Failure> {
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(30));
    Ok(SqliteConnection::connect_with(&options).await?)
}
