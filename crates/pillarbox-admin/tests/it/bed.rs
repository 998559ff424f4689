//! A database with events in it, and the API on it.

use std::time::Duration;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode},
};
use pillarbox_admin::{Access, Admin, Identity, Limits, Role, Tokens};
use pillarbox_core::{
    Event,
    domain::{NodeId, Partition, PartitionSet, Seq},
    port::{
        Batch, Change, Joining, NewRow, OwnStore as _, ReadStore as _, Settlement, TransactStore as _,
        UpkeepStore as _, WriteStore as _,
    },
};
use pillarbox_sqlite::SqliteStore;
use pillarbox_testkit::MemoryStore;
use serde_json::Value;
use sqlx::AssertSqlSafe;
use tower::ServiceExt as _;

pub(crate) const ADA: &str = "ada-is-an-operator-0123456789";
pub(crate) const VIC: &str = "vic-is-a-viewer-0123456789abc";

/// Every event of the bed: its id, by its number.
pub(crate) fn id(number: i64) -> String {
    format!("{number:026}")
}

pub(crate) struct Bed {
    pub(crate) router: Router,
    pub(crate) store: SqliteStore,
    _folder: tempfile::TempDir,
}

pub(crate) fn tokens() -> Access {
    let tokens = Tokens::new().with("ada", Role::Operator, ADA).unwrap().with("vic", Role::Viewer, VIC).unwrap();
    Access::tokens(tokens)
}

impl Bed {
    /// Numbers 1 to 5 are dead, 6 is new, 7 done, and 8 waits behind 1, which holds the key `k1`.
    pub(crate) async fn new() -> Self {
        Self::with(tokens(), |admin| admin).await
    }

    pub(crate) async fn with(access: Access, change: impl FnOnce(Admin) -> Admin) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("outbox.db").to_str().unwrap()).await.unwrap();
        store.migrate().await.unwrap();
        let router = Router::new().nest("/api/admin", change(Admin::new(store.clone(), access)).router());
        let bed = Self { router, store, _folder: folder };
        for number in 1..=5 {
            bed.insert(number, "DEAD", "Placed", r#"{"total": 1.50, "card": {"number": "4711-0815"}}"#).await;
        }
        bed.insert(6, "NEW", "Paid", "1").await;
        bed.insert(7, "DONE", "Paid", "1").await;
        bed.insert(8, "NEW", "Placed", "1").await;
        bed.run("update outbox_event set event_key = 'k' || seq, partition = 7 where seq = 1").await;
        bed.run("update outbox_event set event_key = 'k1', partition = 7 where seq = 8").await;
        bed.run("insert into outbox_hold (partition, kind, name, from_seq) values (7, 'DEAD_HEAD', 'k1', 1)").await;
        bed.run(
            "update outbox_event set tenant_id = 'acme', aggregate_type = 'Order', aggregate_id = '7' where seq = 2",
        )
        .await;
        bed.run("update outbox_event set headers = '{\"authorization\":\"Basic c2VjcmV0\",\"source\":\"web\"}' where seq = 3")
            .await;
        bed
    }

    pub(crate) async fn insert(&self, number: i64, status: &str, event_type: &str, payload: &str) {
        let died = status == "DEAD";
        sqlx::query(
            "insert into outbox_event (seq, event_id, event_type, payload, status, attempts, done_at, last_error)
            values (?1, ?2, ?3, ?4, ?5, ?6, iif(?5 in ('DEAD', 'DONE'), 1700000000000000 + ?1, null), ?7)",
        )
        .bind(number)
        .bind(id(number))
        .bind(event_type)
        .bind(payload)
        .bind(status)
        .bind(if died { 10 } else { 0 })
        .bind(died.then(|| format!("the carrier refused it: card 4711-0815 of {number}")))
        .execute(self.store.pool())
        .await
        .unwrap();
    }

    pub(crate) async fn run(&self, sql: &str) {
        sqlx::query(AssertSqlSafe(sql.to_owned())).execute(self.store.pool()).await.unwrap();
    }

    pub(crate) async fn text(&self, sql: &str) -> String {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(self.store.pool()).await.unwrap()
    }

    /// As an operator.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, Some(ADA), None).await
    }

    /// As an operator.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, Some(ADA), Some(body)).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, token: Option<&str>, body: Option<Value>) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("/api/admin{path}"));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        self.request(request.body(body).unwrap()).await
    }

    pub(crate) async fn request(&self, request: Request<Body>) -> Answer {
        answer(&self.router, request).await
    }
}

pub(crate) async fn answer(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// A problem document of this status.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        for field in ["type", "title", "detail"] {
            assert!(problem[field].is_string(), "{problem}");
        }
        problem
    }
}

/// A text as it stands in an address, every byte of it coded.
pub(crate) fn coded(text: &str) -> String {
    text.bytes().fold(String::new(), |coded, byte| coded + &format!("%{byte:02X}"))
}

/// The values of a field in a list.
pub(crate) fn each<'a>(list: &'a Value, field: &str) -> Vec<&'a Value> {
    list.as_array().unwrap().iter().map(|item| &item[field]).collect()
}

/// A database in memory with five dead events, under a clock that a test may stop.
pub(crate) async fn in_memory(limits: Limits) -> Router {
    let store = MemoryStore::virtual_time();
    let joining = Joining { node: NodeId::new("node"), ttl: Duration::from_hours(1), routes: Vec::new(), in_flight: 1 };
    let lease = store.join(&joining).await.unwrap();
    let epoch = store.take(&lease, PartitionSet::ALL).await.unwrap().unwrap()[0].epoch;
    let event = || Event::builder("Placed").json(&1).build().unwrap();
    let rows: Vec<_> = (0..5).map(|_| NewRow { event: event(), partition: Partition(0) }).collect();
    let mut tx = store.begin().await.unwrap();
    let seqs = store.insert(&mut tx, &rows).await.unwrap();
    store.commit(tx).await.unwrap();
    let died = |seq: &Seq| Settlement {
        seq: *seq,
        partition: Partition(0),
        epoch,
        key: None,
        change: Change::Dead { attempts: 1, error: "boom".to_owned(), progress: None, hold: false },
    };
    let batch = Batch { outcomes: seqs.iter().map(died).collect(), ..Batch::default() };
    store.settle(&lease, &batch).await.unwrap();
    Admin::new(store, Access::everybody(Identity::operator("ada"))).limits(limits).router()
}
