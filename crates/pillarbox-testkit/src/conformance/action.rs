//! What operators have done, and the edit of a payload.

use std::time::Duration;

use pillarbox_core::{
    Event, EventId,
    domain::{Payload, Seq, Status},
    port::{ActionQuery, ActionStore, Actor, AdminStore, Change, Query},
};

use super::{
    Backend,
    scene::{Scene, dead, event, events, keyed, operator, retry},
};

fn json(text: &str) -> Payload {
    Payload::json_text(text).expect("JSON")
}

/// U3: the old payload is kept with who, when and why.
pub async fn a_dead_events_payload_is_replaced_and_the_old_one_kept<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let before = "{ \"total\": 1.50,\n \"note\": \"it's \\\"so\\\" \\u0000 ü 🦀\" }";
    let written = scene.write([Event::builder("Placed").key("k").header("h", "v").json_text(before), keyed("k")]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    let old = scene.record(written[0]).await;
    let ada = Actor::new("ada").because("the total was wrong; ' or 1=1 --");
    let after = json("{\"total\": 15.00}");
    assert!(scene.store().edit(written[0], &after, &ada).await.expect("edit"));

    let found = scene.found(written[0]).await;
    assert_eq!((found.status, found.holds_key), (Status::Dead, true), "it stays dead, and its key held");
    assert_eq!(found.last_error.as_deref(), Some("boom"));
    let new = scene.record(written[0]).await;
    assert_eq!(new.event.payload(), &after);
    let back = new.event.to_builder().payload(old.event.payload().clone()).build().expect("an event");
    assert_eq!(back, old.event, "nothing but the payload has changed");

    let actions = scene.store().actions(&ActionQuery::default(), None, 10).await.expect("actions");
    let [action] = &actions.actions[..] else { panic!("{actions:?}") };
    assert_eq!((action.action.as_str(), action.seq, &action.actor), ("EDIT", Some(written[0]), &ada));
    assert_eq!(action.event_id.as_deref(), Some(old.event.id().to_string().as_str()));
    assert_eq!(action.event_type.as_deref(), Some("Placed"));
    assert_eq!(action.before.as_ref(), Some(old.event.payload()));
    assert!(action.at <= scene.now().await && action.at >= old.created_at);

    let replayed = scene.store().replay(&written[..1], &ada).await.expect("replay");
    assert_eq!(replayed, written[..1]);
    assert_eq!(scene.record(written[0]).await.event.payload(), &after, "what is delivered is the new one");
}

/// E3, E6.
pub async fn an_edit_may_turn_text_into_bytes_and_back<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let seq = scene.write_one(Event::builder("Picture").bytes("image/png", vec![0, 159, 146, 150])).await;
    scene.settle_one(&owner, seq, dead(false)).await;
    let payloads = [
        json("[1]"),
        Payload::bytes("application/octet-stream", vec![0, 255, 0]),
        Payload::bytes("text/plain", ""),
        Payload::bytes("application/octet-stream", vec![7; 1 << 20]),
        json("[2]"),
    ];
    for payload in &payloads {
        assert!(scene.store().edit(seq, payload, &operator()).await.expect("edit"));
        assert_eq!(scene.record(seq).await.event.payload(), payload);
    }
    let actions = scene.store().actions(&ActionQuery::default(), None, 10).await.expect("actions").actions;
    let kept: Vec<_> = actions.iter().rev().skip(1).map(|action| action.before.clone().expect("kept")).collect();
    assert_eq!(kept, payloads[..4]);
}

/// I6.
pub async fn only_a_dead_event_can_be_edited<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(4)).await;
    scene.settle_one(&owner, written[1], retry(Duration::ZERO)).await;
    scene.settle_one(&owner, written[2], Change::Done).await;
    scene.settle_one(&owner, written[3], dead(false)).await;
    assert_eq!(scene.store().replay(&written[3..], &operator()).await.expect("replay"), written[3..]);
    let before = scene.all().await;
    for seq in [written[0], written[1], written[2], written[3], Seq(written[3].0 + 1_000)] {
        assert!(!scene.store().edit(seq, &json("7"), &operator()).await.expect("edit"));
    }
    assert_eq!(scene.all().await, before);
    let actions = scene.store().actions(&ActionQuery::default(), None, 10).await.expect("actions").actions;
    assert_eq!(actions.len(), 1, "what changed nothing is not recorded");
}

/// U3.
pub async fn actions_are_listed_newest_first_and_by_event_and_actor<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write([keyed("k"), event(), event()]).await;
    scene.settle_one(&owner, written[0], dead(true)).await;
    for seq in &written[1..] {
        scene.settle_one(&owner, *seq, dead(false)).await;
    }
    let id = scene.record(written[0]).await.event.id();
    let store = scene.store();
    let (ada, bob) = (Actor::new("ada").because("mended"), Actor::new("bob"));
    store.skip(&written[..1], &ada).await.expect("skip");
    store.edit(written[0], &json("1"), &bob).await.expect("edit");
    store.replay(&written[..2], &ada).await.expect("replay");
    store.discard(&written[2..], &bob).await.expect("discard");

    let all = store.actions(&ActionQuery::default(), None, 100).await.expect("actions");
    let told: Vec<_> = all.actions.iter().map(|a| (a.action.as_str(), a.seq, a.actor.clone())).collect();
    let (first, second, third) = (Some(written[0]), Some(written[1]), Some(written[2]));
    let expected = [
        ("DISCARD", third, bob.clone()),
        ("REPLAY", second, ada.clone()),
        ("REPLAY", first, ada.clone()),
        ("EDIT", first, bob.clone()),
        ("SKIP", first, ada.clone()),
    ];
    assert_eq!(told, expected);
    assert_eq!(all.next, None);

    let mut found = Vec::new();
    let mut from = None;
    for _ in 0..10 {
        let page = store.actions(&ActionQuery::default(), from, 2).await.expect("actions");
        assert!(page.actions.len() <= 2);
        found.extend(page.actions);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(found, all.actions, "page by page");

    let asked = async |query: ActionQuery| {
        let actions = store.actions(&query, None, 100).await.expect("actions").actions;
        actions.iter().map(|action| action.action.clone()).collect::<Vec<_>>()
    };
    let any = ActionQuery::default;
    let by = async |event_id: Option<EventId>, who: Option<&str>| {
        let (event_id, who) = (event_id.map(|id| id.to_string()), who.map(ToOwned::to_owned));
        asked(ActionQuery { event_id, who, ..any() }).await
    };
    assert_eq!(by(Some(id), None).await, ["REPLAY", "EDIT", "SKIP"]);
    assert_eq!(by(None, Some("ada")).await, ["REPLAY", "REPLAY", "SKIP"]);
    assert_eq!(by(Some(id), Some("bob")).await, ["EDIT"]);
    let of_first = ActionQuery { seq: first, ..any() };
    assert_eq!(asked(of_first.clone()).await, ["REPLAY", "EDIT", "SKIP"]);
    assert_eq!(asked(ActionQuery { seq: third, ..any() }).await, ["DISCARD"], "its row is gone");
    assert_eq!(asked(ActionQuery { who: Some("bob".into()), ..of_first.clone() }).await, ["EDIT"]);
    assert_eq!(asked(ActionQuery { event_id: Some(id.to_string()), ..of_first }).await, ["REPLAY", "EDIT", "SKIP"]);
    assert!(asked(ActionQuery { event_id: Some(id.to_string()), seq: third, ..any() }).await.is_empty());
    assert!(asked(ActionQuery { event_id: Some("no-ulid-2".into()), ..any() }).await.is_empty());
    for nobody in ["Ada", "ada ", "' or 1=1 --", "%", ""] {
        assert!(by(None, Some(nobody)).await.is_empty(), "{nobody:?}");
    }
}

/// U3.
pub async fn old_actions_are_purged_in_batches<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(6)).await;
    for seq in &written {
        scene.settle_one(&owner, *seq, dead(false)).await;
    }
    let store = scene.store();
    store.replay(&written[..5], &operator()).await.expect("replay");
    let purge = async |span, batch| store.purge_actions(span, batch).await.expect("purge");
    assert_eq!(purge(Duration::from_mins(1), 100).await, 0, "too young");
    assert_eq!(purge(Duration::MAX, 100).await, 0);
    scene.backend.pass(Duration::from_secs(3)).await;
    store.replay(&written[5..], &operator()).await.expect("replay");
    assert_eq!(purge(Duration::from_secs(2), 2).await, 2);
    assert_eq!(purge(Duration::from_secs(2), 2).await, 2);
    assert_eq!(purge(Duration::from_secs(2), 2).await, 1);
    assert_eq!(purge(Duration::from_secs(2), 2).await, 0);
    let left = store.actions(&ActionQuery::default(), None, 100).await.expect("actions").actions;
    assert_eq!(left.iter().map(|action| action.seq).collect::<Vec<_>>(), [Some(written[5])]);
}

/// U3.
pub async fn a_listing_can_begin_with_the_newest<B: Backend>() {
    let scene = Scene::<B>::new().await;
    let owner = scene.owner().await;
    let written = scene.write(events(9)).await;
    for seq in &written[1..8] {
        scene.settle_one(&owner, *seq, dead(false)).await;
    }
    for statuses in [vec![Status::Dead], vec![]] {
        let expected = if statuses.is_empty() { &written[..] } else { &written[1..8] };
        let query = Query { statuses, newest_first: true, ..Query::default() };
        let (mut found, mut from) = (Vec::new(), Seq(i64::MAX));
        for _ in 0..10 {
            let listing = scene.store().list(&query, from, 3).await.expect("list");
            found.extend(listing.events.iter().map(|found| found.seq));
            match listing.next {
                Some(next) => from = next,
                None => break,
            }
        }
        found.reverse();
        assert_eq!(found, expected);
    }
}
