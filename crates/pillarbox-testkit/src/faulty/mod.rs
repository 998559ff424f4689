//! Scripted faults: any store, with what goes wrong written down by the test.

mod ports;
mod script;

pub use script::Faults;

/// A call to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `WriteStore::insert`.
    Insert,
    /// `WriteStore::enter_keys`.
    EnterKeys,
    /// `TransactStore::begin`.
    Begin,
    /// `TransactStore::commit`.
    Commit,
    /// `TransactStore::rollback`.
    Rollback,
    /// `SettleStore::begin_work`.
    BeginWork,
    /// `SettleStore::keep`.
    Keep,
    /// `SettleStore::undo`.
    Undo,
    /// `SettleStore::settle_in`.
    SettleIn,
    /// `SettleStore::unsettled`.
    Unsettled,
    /// `OwnStore::join`.
    Join,
    /// `OwnStore::renew`.
    Renew,
    /// `OwnStore::publish`.
    Publish,
    /// `OwnStore::expel`.
    Expel,
    /// `OwnStore::take`.
    Take,
    /// `OwnStore::release`.
    Release,
    /// `OwnStore::leave`.
    Leave,
    /// `ReadStore::page`.
    Page,
    /// `ReadStore::due`.
    Due,
    /// `ReadStore::lane`.
    Lane,
    /// `ReadStore::rows`.
    Rows,
    /// `ReadStore::recall`.
    Recall,
    /// `ReadStore::start`.
    Start,
    /// `ReadStore::settle`.
    Settle,
    /// `UpkeepStore::migrate`.
    Migrate,
    /// `UpkeepStore::check`.
    Check,
    /// `UpkeepStore::purge`.
    Purge,
    /// `AdminStore::list`.
    List,
    /// `AdminStore::count`.
    Count,
    /// `AdminStore::replay`.
    Replay,
    /// `AdminStore::discard`.
    Discard,
    /// `AdminStore::skip`.
    Skip,
    /// `AdminStore::stats`.
    Stats,
    /// `AdminStore::fleet`.
    Fleet,
    /// `ActionStore::edit`.
    Edit,
    /// `ActionStore::actions`.
    Actions,
    /// `ActionStore::purge_actions`.
    PurgeActions,
    /// `WakeStore::hint`.
    Hint,
    /// `WakeStore::news`.
    News,
    /// `WakeStore::hint_fleet`.
    HintFleet,
}

impl Call {
    const COUNT: usize = Self::HintFleet as usize + 1;

    /// Every call.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Insert,
        Self::EnterKeys,
        Self::Begin,
        Self::Commit,
        Self::Rollback,
        Self::BeginWork,
        Self::Keep,
        Self::Undo,
        Self::SettleIn,
        Self::Unsettled,
        Self::Join,
        Self::Renew,
        Self::Publish,
        Self::Expel,
        Self::Take,
        Self::Release,
        Self::Leave,
        Self::Page,
        Self::Due,
        Self::Lane,
        Self::Rows,
        Self::Recall,
        Self::Start,
        Self::Settle,
        Self::Migrate,
        Self::Check,
        Self::Purge,
        Self::List,
        Self::Count,
        Self::Replay,
        Self::Discard,
        Self::Skip,
        Self::Stats,
        Self::Fleet,
        Self::Edit,
        Self::Actions,
        Self::PurgeActions,
        Self::Hint,
        Self::News,
        Self::HintFleet,
    ];
}

/// A store that does what it is told, until the script says otherwise.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use pillarbox_core::port::{AdminStore, StoreErrorKind};
/// use pillarbox_testkit::{Call, Faulty, MemoryStore};
///
/// let store = Faulty::new(MemoryStore::new());
/// store.faults().fail(Call::Stats, 1, StoreErrorKind::Unavailable);
/// assert!(store.stats().await.is_err());
/// assert!(store.stats().await.is_ok());
/// assert_eq!(store.faults().calls(Call::Stats), 2);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Faulty<S> {
    store: S,
    faults: Faults,
}

impl<S> Faulty<S> {
    /// Wraps a store; nothing is scripted yet.
    pub fn new(store: S) -> Self {
        Self { store, faults: Faults::new() }
    }

    /// The script.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The store itself, past the script.
    pub fn inner(&self) -> &S {
        &self.store
    }
}
