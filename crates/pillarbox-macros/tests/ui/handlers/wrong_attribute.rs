use pillarbox_macros::{OutboxEvent, handlers};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, OutboxEvent)]
#[outbox(crate = pillarbox_core)]
struct Placed {
    number: u32,
}

struct Unknown;

#[handlers(crate = pillarbox_core)]
impl Unknown {
    #[handler(name = "ship")]
    async fn ship(&self, placed: Placed) {}
}

struct BadTime;

#[handlers(crate = pillarbox_core)]
impl BadTime {
    #[handler]
    #[retry(fixed = "5 minutes")]
    async fn ship(&self, placed: Placed) {}
}

struct TwoKinds;

#[handlers(crate = pillarbox_core)]
impl TwoKinds {
    #[handler]
    #[retry(fixed = "1s", linear = "2s")]
    async fn ship(&self, placed: Placed) {}
}

struct NoAttempts;

#[handlers(crate = pillarbox_core)]
impl NoAttempts {
    #[handler]
    #[retry(fixed = "1s", max_attempts = 0)]
    async fn ship(&self, placed: Placed) {}
}

struct RetriedFallback;

#[handlers(crate = pillarbox_core)]
impl RetriedFallback {
    #[handler]
    async fn ship(&self, placed: Placed) {}

    #[fallback]
    #[retry(never)]
    async fn ask(&self, placed: Placed) {}
}

struct LostFallback;

#[handlers(crate = pillarbox_core)]
impl LostFallback {
    #[handler]
    async fn ship(&self, placed: Placed) {}

    #[fallback(of = mail)]
    async fn ask(&self, placed: Placed) {}
}

struct LoneRetry;

#[handlers(crate = pillarbox_core)]
impl LoneRetry {
    #[retry(never)]
    async fn ship(&self, placed: Placed) {}
}

#[handlers(crate = pillarbox_core)]
impl Clone for LoneRetry {
    fn clone(&self) -> Self {
        Self
    }
}

fn main() {}
