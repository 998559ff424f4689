//! The exams of guard and letters, on Redis.

use pillarbox_redis::{Options, Persistence, RedisGuard, RedisLetters};
use pillarbox_testkit::servers::Shared;
use redis::Client;

use crate::place::connect;

/// Keys of its own.
struct Own(String);

impl Own {
    fn new() -> Self {
        Self(format!("pillarbox-{:x}:", fastrand::u64(..)))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let client = Client::open(Shared::Redis.url()).expect("a client");
        let mut connection = client.get_connection().expect("a connection");
        let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{}*", self.0)).query(&mut connection).expect("KEYS");
        if !keys.is_empty() {
            let () = redis::cmd("DEL").arg(keys).query(&mut connection).expect("DEL");
        }
    }
}

fn options() -> Options {
    Options::new(Shared::Redis.url()).persistence(Persistence::Always)
}

mod guard {
    use pillarbox_testkit::guards::Place;

    use super::{Own, RedisGuard, Shared, connect, options};

    impl Place for Own {
        type Store = RedisGuard;

        async fn fresh() -> Self {
            Self::new()
        }

        fn store(&self) -> RedisGuard {
            options().guard(&self.0).expect("a guard")
        }

        async fn pass(&self) {
            let mut connection = connect(&Shared::Redis.url()).await;
            let asked = redis::cmd("KEYS").arg(format!("{}*", self.0)).query_async(&mut connection).await;
            let keys: Vec<String> = asked.expect("KEYS");
            for key in keys {
                let () = redis::cmd("PEXPIRE").arg(key).arg(0).query_async(&mut connection).await.expect("PEXPIRE");
            }
        }
    }

    pillarbox_testkit::guards!(Own);
}

mod letters {
    use pillarbox_testkit::letters::Place;

    use super::{Own, RedisLetters, options};

    impl Place for Own {
        type Store = RedisLetters;

        async fn fresh() -> Self {
            Self::new()
        }

        fn store(&self) -> RedisLetters {
            options().letters(&self.0).expect("letters")
        }
    }

    pillarbox_testkit::letters!(Own);

    #[tokio::test]
    async fn more_letters_of_one_time_than_a_page_are_all_listed() {
        use pillarbox_core::port::{Letter, LetterId, LetterPlace, LetterQuery, LetterStore as _};
        use pillarbox_testkit::letters::letter;
        let own = Own::new();
        let store = own.store();
        for number in 0..250 {
            let same = Letter { id: LetterId(format!("{number:032x}")), ..letter(7) };
            assert!(store.insert(&same).await.expect("an answer"));
        }
        let mut listed: Vec<Letter> = Vec::new();
        loop {
            let after = listed.last().map(LetterPlace::of);
            let page = store.list(&LetterQuery::default(), after.as_ref(), 40).await.expect("a page");
            if page.is_empty() {
                break;
            }
            listed.extend(page);
        }
        let expected: Vec<_> = (0..250).map(|number| LetterId(format!("{number:032x}"))).collect();
        assert_eq!(listed.into_iter().map(|letter| letter.id).collect::<Vec<_>>(), expected);
        let by_text = LetterQuery { text: Some("declined".into()), ..LetterQuery::default() };
        assert_eq!(store.count(&by_text).await.expect("a count"), 250);
    }

    /// What is in the place of a letter, and is none, is told and left out.
    #[tokio::test]
    async fn a_letter_that_can_not_be_read_is_told_by_its_name_and_left_out() {
        use pillarbox_core::port::{DeedQuery, DeedStore as _, LetterQuery, LetterStore as _, StoreErrorKind};
        use pillarbox_testkit::letters::letter;
        let own = Own::new();
        let store = own.store();
        for number in 1..=3 {
            assert!(store.insert(&letter(number)).await.expect("an answer"));
        }
        let id = letter(2).id;
        let mut connection = super::connect(&super::Shared::Redis.url()).await;
        let mut command = redis::cmd("HSET");
        command.arg(format!("{}letter:{id}", own.0)).arg("document").arg("garbage");
        let () = command.query_async(&mut connection).await.expect("HSET");
        assert_eq!(store.list(&LetterQuery::default(), None, 10).await.expect("a page"), [letter(3), letter(1)]);
        assert_eq!(store.deeds(&DeedQuery::default(), None, 10).await.expect("deeds"), []);
        let error = store.find(&id).await.expect_err("garbage");
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(error.to_string().contains(&format!("letter {id} can't be read")), "{error}");
        assert!(std::error::Error::source(&error).is_some_and(<dyn std::error::Error>::is::<serde_json::Error>));
    }
}

/// I1: what was forgotten would be done twice.
#[tokio::test]
async fn a_guard_on_a_server_that_throws_out_marks_is_refused() {
    use pillarbox_core::port::{GuardStore as _, StoreErrorKind};
    use pillarbox_testkit::servers::Redis;
    let server = Redis::start().expect("a server");
    let mut connection = connect(&server.url()).await;
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg("maxmemory-policy").arg("volatile-ttl");
    let () = command.query_async(&mut connection).await.expect("CONFIG SET");
    let hour = std::time::Duration::from_hours(1);
    let guard = Options::new(server.url()).guard("pillarbox:").expect("a guard");
    let error = guard.take("billing", &["m"], "me", hour).await.expect_err("a refusal");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("maxmemory-policy is volatile-ttl"), "{error}");
    let unchecked =
        Options::new(server.url()).persistence(Persistence::Unchecked).guard("pillarbox:").expect("a guard");
    assert_eq!(unchecked.take("billing", &["m"], "me", hour).await.expect("an answer"), [true]);
}

/// I6: a message is acknowledged, and gone, when its letter is confirmed.
#[tokio::test]
async fn letters_ask_for_the_disk_unless_less_was_asked_for() {
    use pillarbox_core::port::{LetterStore as _, StoreErrorKind};
    use pillarbox_testkit::{letters::letter, servers::Redis};
    let server = Redis::start().expect("a server");
    let mut connection = connect(&server.url()).await;
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg("appendfsync").arg("everysec");
    let () = command.query_async(&mut connection).await.expect("CONFIG SET");
    let letters = Options::new(server.url()).letters("pillarbox:").expect("letters");
    let error = letters.insert(&letter(1)).await.expect_err("a refusal");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("appendfsync to always"), "{error}");
    let less = Options::new(server.url()).persistence(Persistence::EverySecond).letters("pillarbox:").expect("letters");
    assert!(less.insert(&letter(1)).await.expect("an answer"));
}

#[tokio::test]
async fn letters_on_a_server_that_could_lose_them_are_refused() {
    use pillarbox_core::port::{LetterStore as _, StoreErrorKind};
    use pillarbox_testkit::{letters::letter, servers::Redis};
    let server = Redis::start().expect("a server");
    let mut connection = connect(&server.url()).await;
    let mut command = redis::cmd("CONFIG");
    command.arg("SET").arg("appendonly").arg("no");
    let () = command.query_async(&mut connection).await.expect("CONFIG SET");
    let letters = Options::new(server.url()).letters("pillarbox:").expect("letters");
    let error = letters.insert(&letter(1)).await.expect_err("a refusal");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("appendonly is no"), "{error}");
    let unchecked =
        Options::new(server.url()).persistence(Persistence::Unchecked).letters("pillarbox:").expect("letters");
    assert!(unchecked.insert(&letter(1)).await.expect("an answer"));
}
