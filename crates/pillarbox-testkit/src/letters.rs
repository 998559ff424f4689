//! The exam of a store of dead letters. An adapter runs it with one line, [`letters!`](crate::letters!), for a type that
//! implements [`Place`].

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use pillarbox_core::{
    domain::Timestamp,
    port::{
        Claim, Deed, DeedPlace, DeedQuery, DeedStore as _, Letter, LetterAction, LetterId, LetterPlace, LetterQuery,
        LetterStatus, LetterStore,
    },
};

/// A place for letters that no other test has.
pub trait Place: Sized + Send + Sync + 'static {
    /// The adapter.
    type Store: LetterStore;

    /// Why the exam can't be held here, if so: a server that is not there. It is left out then, with these words.
    fn missing() -> Option<String> {
        None
    }

    /// A new place, ready.
    fn fresh() -> impl Future<Output = Self> + Send;

    /// The store there; each call may give another client of it.
    fn store(&self) -> Self::Store;
}

/// Makes a test of every case, for a type that implements [`Place`](trait@crate::letters::Place).
#[macro_export]
macro_rules! letters {
    ($place:ty) => {
        $crate::exam!(letters, $place:
            a_letter_comes_back_whole,
            a_letter_with_nul_characters_comes_back_whole,
            a_second_letter_of_an_id_changes_nothing,
            only_the_successor_of_what_is_stored_takes_its_place,
            of_many_changes_at_once_one_takes_effect,
            lists_go_from_new_to_old_page_by_page,
            lists_go_from_old_to_new_the_other_way_round,
            what_was_done_is_listed_the_newest_first,
            letters_are_found_by_every_field,
            counts_are_those_of_the_list,
            a_purge_removes_finished_letters_of_their_age_and_no_others,
            hostile_text_is_text,
            the_stores_time_is_near_ours,
        );
    };
}

/// A letter with something in every field.
pub fn letter(number: u8) -> Letter {
    let at = |micros: i64| Timestamp::from_micros(1_700_000_000_000_000 + micros);
    Letter {
        id: LetterId(format!("{number:032x}")),
        version: 0,
        consumer: "billing".into(),
        event_id: format!("event-{number}"),
        event_type: "OrderPlaced".into(),
        topic: "orders.placed".into(),
        key: Some("order-7".into()),
        content_type: "application/json".into(),
        attributes: vec![("id".into(), format!("event-{number}")), ("source".into(), "/orders".into())],
        headers: vec![("traceparent".into(), "00-1-2-01".into()), ("x".into(), "grün \"\\".into())],
        payload: Bytes::from_static(b"{\"total\": 4200}"),
        reason: "the card was declined".into(),
        attempts: 10,
        dead_at: at(i64::from(number)),
        source: Some("/orders".into()),
        saga_id: Some("saga-1".into()),
        correlation_id: Some("correlation-1".into()),
        replays: 0,
        status: LetterStatus::Pending,
        finished_at: None,
        claim: None,
        history: Vec::new(),
    }
}

async fn insert<P: Place>(place: &P, letter: &Letter) {
    assert!(place.store().insert(letter).await.expect("an answer"));
}

/// I5: every field, also those that may be missing, and every byte.
pub async fn a_letter_comes_back_whole<P: Place>() {
    let place = P::fresh().await;
    let full = Letter {
        replays: 2,
        status: LetterStatus::Replayed,
        finished_at: Some(Timestamp::from_micros(1_700_000_000_000_001)),
        claim: Some(Claim { by: "me".into(), until: Timestamp::from_micros(1_700_000_000_000_002) }),
        history: vec![
            LetterAction {
                at: Timestamp::from_micros(1),
                what: "replay".into(),
                who: "ada".into(),
                why: None,
                before: None,
            },
            LetterAction {
                at: Timestamp::from_micros(2),
                what: "edit".into(),
                who: "b".into(),
                why: Some("why".into()),
                before: Some(Bytes::from_static(&[0, 255, 10, 13, 0, 128])),
            },
        ],
        ..letter(1)
    };
    let bare = Letter {
        key: None,
        content_type: String::new(),
        attributes: Vec::new(),
        headers: Vec::new(),
        payload: Bytes::from_static(&[0, 255, 10, 13, 0, 128]),
        reason: String::new(),
        attempts: 0,
        source: None,
        saga_id: None,
        correlation_id: None,
        ..letter(2)
    };
    let large = Letter { payload: vec![b'x'; 900_000].into(), ..letter(3) };
    for letter in [full, bare, large] {
        insert(&place, &letter).await;
        assert_eq!(place.store().find(&letter.id).await.expect("an answer"), Some(letter));
    }
    assert_eq!(place.store().find(&LetterId("ff".repeat(16))).await.expect("an answer"), None);
}

/// I5: a message that nobody understands may contain anything, and must find its place all the same.
pub async fn a_letter_with_nul_characters_comes_back_whole<P: Place>() {
    let place = P::fresh().await;
    let store = place.store();
    let poison = Letter {
        event_id: "event\0-1".into(),
        event_type: "\0".into(),
        topic: "orders\0".into(),
        key: Some("\0order".into()),
        content_type: "text/plain\0".into(),
        attributes: vec![("id\0".into(), "\0event".into())],
        headers: vec![("x\0".into(), "a\0b\u{1}\u{1a}0".into()), ("\u{1a}".into(), "\0\0".into())],
        payload: Bytes::from_static(b"\0a\0"),
        reason: "unexpected \0 in \u{1a} the middle".into(),
        source: Some("/\0".into()),
        saga_id: Some("\0".into()),
        correlation_id: Some("a\0".into()),
        claim: Some(Claim { by: "\0".into(), until: Timestamp::from_micros(1) }),
        history: vec![LetterAction {
            at: Timestamp::from_micros(1),
            what: "edit".into(),
            who: "\0".into(),
            why: Some("a\0b".into()),
            before: Some(Bytes::from_static(b"a\0b")),
        }],
        ..letter(1)
    };
    insert(&place, &poison).await;
    // Nearly the same texts, which must not be taken for it.
    let other = Letter { event_id: "event\u{1a}0-1".into(), saga_id: Some("0".into()), ..letter(2) };
    insert(&place, &other).await;
    assert_eq!(store.find(&poison.id).await.expect("an answer").as_ref(), Some(&poison));
    let some = |text: &str| Some(text.to_owned());
    for (query, found) in [
        (LetterQuery { event_id: some("event\0-1"), ..LetterQuery::default() }, &poison),
        (LetterQuery { event_id: some("event\u{1a}0-1"), ..LetterQuery::default() }, &other),
        (LetterQuery { saga_id: some("\0"), ..LetterQuery::default() }, &poison),
        (LetterQuery { topic: some("orders\0"), ..LetterQuery::default() }, &poison),
        (LetterQuery { text: some("THE MIDDLE"), ..LetterQuery::default() }, &poison),
    ] {
        assert_eq!(store.list(&query, None, 10).await.expect("a list"), std::slice::from_ref(found), "{query:?}");
    }
    let again = Letter { version: 1, ..poison };
    assert!(store.replace(&again).await.expect("an answer"));
    assert_eq!(store.find(&again.id).await.expect("an answer"), Some(again));
}

/// I6: add.
pub async fn a_second_letter_of_an_id_changes_nothing<P: Place>() {
    let place = P::fresh().await;
    insert(&place, &letter(1)).await;
    let second = Letter { reason: "another".into(), ..letter(1) };
    assert!(!place.store().insert(&second).await.expect("an answer"));
    assert_eq!(place.store().find(&second.id).await.expect("an answer"), Some(letter(1)));
}

/// I6: compare and set.
pub async fn only_the_successor_of_what_is_stored_takes_its_place<P: Place>() {
    let place = P::fresh().await;
    let store = place.store();
    let of_version = |version| Letter { version, reason: format!("version {version}"), ..letter(1) };
    assert!(!store.replace(&of_version(1)).await.expect("an answer"), "there is nothing to replace");
    insert(&place, &letter(1)).await;
    for version in [0, 2, 7] {
        assert!(!store.replace(&of_version(version)).await.expect("an answer"), "{version}");
    }
    assert!(store.replace(&of_version(1)).await.expect("an answer"));
    assert!(!store.replace(&of_version(1)).await.expect("an answer"), "twice");
    let moved = Letter { dead_at: Timestamp::from_micros(5), status: LetterStatus::Discarded, ..of_version(2) };
    assert!(store.replace(&moved).await.expect("an answer"));
    assert_eq!(store.find(&moved.id).await.expect("an answer"), Some(moved.clone()));
    assert_eq!(store.list(&LetterQuery::default(), None, 10).await.expect("a list"), [moved]);
}

/// I7
pub async fn of_many_changes_at_once_one_takes_effect<P: Place>() {
    let place = Arc::new(P::fresh().await);
    insert(&*place, &letter(1)).await;
    let calls = (0..16).map(|n| {
        let place = place.clone();
        let letter = Letter { version: 1, reason: format!("by {n}"), ..letter(1) };
        tokio::spawn(async move { place.store().replace(&letter).await.expect("an answer").then_some(letter) })
    });
    let mut winners = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        winners.extend(call.await.expect("no panic"));
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(place.store().find(&winners[0].id).await.expect("an answer"), Some(winners[0].clone()));
}

/// I6: list.
pub async fn lists_go_from_new_to_old_page_by_page<P: Place>() {
    let place = P::fresh().await;
    let store = place.store();
    assert_eq!(store.list(&LetterQuery::default(), None, 10).await.expect("a list"), []);
    // Pairs of the same time, which follow each other by id.
    let mut all: Vec<_> =
        (0..9).map(|n| Letter { dead_at: Timestamp::from_micros(1_000 + i64::from(n / 2)), ..letter(n) }).collect();
    for letter in &all {
        insert(&place, letter).await;
    }
    all.sort_by(|a, b| (b.dead_at, &a.id).cmp(&(a.dead_at, &b.id)));
    for limit in [1, 2, 3, 8, 9, 20] {
        let mut listed: Vec<Letter> = Vec::new();
        loop {
            let after = listed.last().map(LetterPlace::of);
            let page = store.list(&LetterQuery::default(), after.as_ref(), limit).await.expect("a page");
            assert!(page.len() <= limit as usize);
            if page.is_empty() {
                break;
            }
            listed.extend(page);
        }
        assert_eq!(listed, all, "in pages of {limit}");
    }
}

/// U3: what is replayed goes out in the order in which it died.
pub async fn lists_go_from_old_to_new_the_other_way_round<P: Place>() {
    let place = P::fresh().await;
    let store = place.store();
    let mut all: Vec<_> =
        (0..9).map(|n| Letter { dead_at: Timestamp::from_micros(1_000 + i64::from(n / 2)), ..letter(n) }).collect();
    for letter in &all {
        insert(&place, letter).await;
    }
    all.sort_by(|a, b| (a.dead_at, &b.id).cmp(&(b.dead_at, &a.id)));
    for status in [None, Some(LetterStatus::Pending)] {
        let query = LetterQuery { status, oldest_first: true, ..LetterQuery::default() };
        for limit in [1, 2, 3, 8, 9, 20] {
            let mut listed: Vec<Letter> = Vec::new();
            loop {
                let after = listed.last().map(LetterPlace::of);
                let page = store.list(&query, after.as_ref(), limit).await.expect("a page");
                assert!(page.len() <= limit as usize);
                if page.is_empty() {
                    break;
                }
                listed.extend(page);
            }
            assert_eq!(listed, all, "in pages of {limit}");
        }
        let some = LetterQuery {
            from: Some(Timestamp::from_micros(1_001)),
            until: Some(Timestamp::from_micros(1_003)),
            ..query
        };
        let expected: Vec<_> = all.iter().filter(|letter| some.matches(letter)).cloned().collect();
        assert_eq!(expected.len(), 4);
        assert_eq!(store.list(&some, None, 10).await.expect("a list"), expected);
        // Places outside of what is asked.
        let early = LetterPlace::of(&all[0]);
        assert_eq!(store.list(&some, Some(&early), 10).await.expect("a list"), expected);
        let late = LetterPlace::of(&all[8]);
        assert_eq!(store.list(&some, Some(&late), 10).await.expect("a list"), []);
        assert_eq!(store.count(&some).await.expect("a count"), 4);
    }
}

/// U3, A3: by letter, event, consumer and actor, page by page.
pub async fn what_was_done_is_listed_the_newest_first<P: Place>() {
    let place = P::fresh().await;
    let store = place.store();
    let done = |at: i64, who: &str, what: &str| LetterAction {
        at: Timestamp::from_micros(at),
        what: what.into(),
        who: who.into(),
        why: Some(format!("{what} at {at}")),
        before: (what == "edit").then(|| Bytes::from_static(b"{\"a\": [1]}")),
    };
    let histories = [
        vec![done(10, "ada", "edit"), done(30, "bob", "replay")],
        vec![],
        // Of one time: from the last to the first, and by letter.
        vec![done(30, "ada", "edit"), done(30, "ada", "discard")],
        vec![done(20, "\0'; --", "discard")],
    ];
    for (number, history) in (0..).zip(&histories) {
        let consumer = if number == 3 { "shipping".into() } else { "billing".into() };
        insert(&place, &Letter { history: history.clone(), consumer, ..letter(number) }).await;
    }
    let of = |number: u8, place: u32| {
        let letter = letter(number);
        Deed {
            letter: letter.id,
            number: place,
            consumer: if number == 3 { "shipping".into() } else { "billing".into() },
            event_id: letter.event_id,
            event_type: letter.event_type,
            content_type: letter.content_type,
            action: histories[usize::from(number)][place as usize].clone(),
        }
    };
    let all = [of(0, 1), of(2, 1), of(2, 0), of(3, 0), of(0, 0)];
    for limit in [1, 2, 4, 5, 20] {
        let mut listed: Vec<Deed> = Vec::new();
        loop {
            let after = listed.last().map(DeedPlace::of);
            let page = store.deeds(&DeedQuery::default(), after.as_ref(), limit).await.expect("a page");
            assert!(page.len() <= limit as usize);
            if page.is_empty() {
                break;
            }
            listed.extend(page);
        }
        assert_eq!(listed, all, "in pages of {limit}");
    }
    let some = |text: &str| Some(text.to_owned());
    let any = DeedQuery::default;
    for (query, expected) in [
        (DeedQuery { letter: Some(letter(2).id), ..any() }, vec![of(2, 1), of(2, 0)]),
        (DeedQuery { event_id: some("event-0"), ..any() }, vec![of(0, 1), of(0, 0)]),
        (DeedQuery { consumer: some("shipping"), ..any() }, vec![of(3, 0)]),
        (DeedQuery { who: some("ada"), ..any() }, vec![of(2, 1), of(2, 0), of(0, 0)]),
        (DeedQuery { who: some("\0'; --"), ..any() }, vec![of(3, 0)]),
        (DeedQuery { who: some("nobody"), ..any() }, vec![]),
    ] {
        assert_eq!(store.deeds(&query, None, 10).await.expect("a list"), expected, "{query:?}");
    }
}

fn queries() -> Vec<LetterQuery> {
    let some = |text: &str| Some(text.to_owned());
    let any = LetterQuery::default;
    vec![
        any(),
        LetterQuery { status: Some(LetterStatus::Pending), ..any() },
        LetterQuery { status: Some(LetterStatus::Discarded), ..any() },
        LetterQuery { consumer: some("shipping"), ..any() },
        LetterQuery { event_type: some("OrderPaid"), ..any() },
        LetterQuery { topic: some("orders.paid"), ..any() },
        LetterQuery { event_id: some("event-3"), ..any() },
        LetterQuery { saga_id: some("saga-2"), ..any() },
        LetterQuery { correlation_id: some("correlation-2"), ..any() },
        LetterQuery { from: Some(letter(3).dead_at), ..any() },
        LetterQuery { until: Some(letter(3).dead_at), ..any() },
        LetterQuery { text: some("DECLINED"), ..any() },
        LetterQuery { text: some("needle"), ..any() },
        LetterQuery { status: Some(LetterStatus::Pending), text: some("card"), consumer: some("billing"), ..any() },
        LetterQuery { saga_id: some("nobody's"), ..any() },
    ]
}

fn varied() -> Vec<Letter> {
    vec![
        letter(0),
        Letter { status: LetterStatus::Discarded, finished_at: Some(letter(1).dead_at), ..letter(1) },
        Letter { consumer: "shipping".into(), event_type: "OrderPaid".into(), ..letter(2) },
        Letter { topic: "orders.paid".into(), saga_id: Some("saga-2".into()), ..letter(3) },
        Letter { correlation_id: Some("correlation-2".into()), saga_id: None, ..letter(4) },
        Letter { reason: "out of stock".into(), payload: Bytes::from_static(b"a Needle"), ..letter(5) },
        Letter { correlation_id: None, reason: String::new(), payload: Bytes::from_static(&[255, 0]), ..letter(6) },
    ]
}

/// U3, I6
pub async fn letters_are_found_by_every_field<P: Place>() {
    let place = P::fresh().await;
    let all = varied();
    for letter in &all {
        insert(&place, letter).await;
    }
    for query in queries() {
        let expected: Vec<_> = all.iter().rev().filter(|letter| query.matches(letter)).cloned().collect();
        assert_eq!(place.store().list(&query, None, 100).await.expect("a list"), expected, "{query:?}");
    }
}

/// I6: count.
pub async fn counts_are_those_of_the_list<P: Place>() {
    let place = P::fresh().await;
    for letter in varied() {
        insert(&place, &letter).await;
    }
    for query in queries() {
        let listed = place.store().list(&query, None, 100).await.expect("a list").len();
        assert_eq!(place.store().count(&query).await.expect("a count"), listed as u64, "{query:?}");
    }
}

/// I6: kept for its time; pending ones for ever.
pub async fn a_purge_removes_finished_letters_of_their_age_and_no_others<P: Place>() {
    let place = P::fresh().await;
    let store = place.store();
    let finished = |number: u8, status, at: i64| Letter {
        status,
        finished_at: Some(Timestamp::from_micros(at)),
        ..letter(number)
    };
    let old = [
        finished(1, LetterStatus::Replayed, 10),
        finished(2, LetterStatus::Discarded, 11),
        finished(3, LetterStatus::Replayed, 12),
    ];
    let kept = [
        finished(4, LetterStatus::Discarded, 100),
        // It came back after a replay.
        finished(5, LetterStatus::Pending, 10),
        letter(6),
    ];
    for letter in old.iter().chain(&kept) {
        insert(&place, letter).await;
    }
    let before = Timestamp::from_micros(100);
    let mut purged = Vec::new();
    loop {
        let some = store.purge(before, 2).await.expect("a purge");
        purged.push(some);
        if some == 0 {
            break;
        }
    }
    assert_eq!(purged, [2, 1, 0]);
    for letter in &old {
        assert_eq!(store.find(&letter.id).await.expect("an answer"), None);
    }
    let left = store.list(&LetterQuery::default(), None, 10).await.expect("a list");
    assert_eq!(left, kept.iter().rev().cloned().collect::<Vec<_>>());
    // What was removed may come again.
    insert(&place, &letter(1)).await;
}

/// S5
pub async fn hostile_text_is_text<P: Place>() {
    let place = P::fresh().await;
    let words = ["'; drop table letters; --", "100%", "a_b", "\\", "\"", "*", "{}", "grün 日本", "a\nb"];
    for (number, word) in (0..).zip(words) {
        let hostile = Letter {
            consumer: (*word).into(),
            event_id: (*word).into(),
            topic: (*word).into(),
            reason: format!("it said {word}!"),
            ..letter(number)
        };
        insert(&place, &hostile).await;
        for query in [
            LetterQuery { consumer: Some((*word).into()), ..LetterQuery::default() },
            LetterQuery { event_id: Some((*word).into()), ..LetterQuery::default() },
            LetterQuery { topic: Some((*word).into()), ..LetterQuery::default() },
            LetterQuery { text: Some(format!("said {word}!")), ..LetterQuery::default() },
        ] {
            let found = place.store().list(&query, None, 10).await.expect("a list");
            assert_eq!(found, std::slice::from_ref(&hostile), "{query:?}");
        }
    }
}

/// I6: claims and ages are counted by it.
pub async fn the_stores_time_is_near_ours<P: Place>() {
    let place = P::fresh().await;
    let ours = Timestamp::from(std::time::SystemTime::now());
    let theirs = place.store().now().await.expect("a time");
    // The servers of an exam run on this host.
    let apart = theirs.since(ours).max(ours.since(theirs));
    assert!(apart < Duration::from_mins(1), "{apart:?}");
}
