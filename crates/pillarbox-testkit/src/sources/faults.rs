//! A call that is dropped, and a broker that is not there, does not answer, or dies.

use std::{collections::BTreeSet, time::Duration};

use pillarbox_core::port::{Received, SinkErrorKind, Source};
use tokio::time::timeout;

use super::{
    GROUP, LATE, PATIENCE, Place, SOON,
    steps::{
        fresh, id, ids, receive, seen_within, send_some, tickets, unavailable, unless_unavailable, until_acknowledged,
    },
};

/// I4: it is given by the next call, or comes again.
pub async fn a_receive_that_is_dropped_loses_nothing<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    let mut left = BTreeSet::new();
    for round in 0..30 {
        if round % 3 == 0 {
            left.extend(send_some(&place, 3).await);
        }
        let span = Duration::from_micros(300 * round);
        if let Ok(came) = timeout(span, source.receive(2)).await {
            acknowledge_all(&source, unless_unavailable(came), &mut left).await;
        }
    }
    while !left.is_empty() {
        let came = receive(&source, 1).await;
        acknowledge_all(&source, came, &mut left).await;
    }
}

async fn acknowledge_all(source: &impl Source, came: Vec<Received>, left: &mut BTreeSet<String>) {
    for came in came {
        assert_eq!(source.acknowledge(&[came.ticket]).await, [Ok(())]);
        left.remove(&id(&came));
    }
}

/// I4: it is told, and it comes back by itself.
pub async fn nobody_there_at_the_start_is_no_end<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 2).await;
    place.proxy().refuse();
    let source = place.source(GROUP, LATE);
    let error = source.receive(1).await.expect_err("nobody");
    assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
    assert!(error.to_string().len() > 3, "{error:?} says nothing");
    place.proxy().accept().expect("to accept");
    assert_eq!(ids(&receive(&source, 2).await), sent);
}

/// I4: it does not wait for ever.
pub async fn a_broker_that_does_not_answer_is_unavailable<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    let sent = send_some(&place, 1).await;
    let first = receive(&source, 1).await;
    assert_eq!(source.acknowledge(&tickets(&first)).await, [Ok(())]);
    assert_eq!(ids(&first), sent);
    place.proxy().stall();
    unavailable(&source).await;
    let told = timeout(PATIENCE, source.lag()).await.expect("an answer");
    assert!(told.is_err() || told == Ok(None), "{told:?}");
    place.proxy().resume();
    place.proxy().cut();
    let sent = send_some(&place, 1).await;
    assert_eq!(ids(&receive(&source, 1).await), sent);
}

/// I4: nobody knows whether the broker has it.
pub async fn an_acknowledgement_without_an_answer_is_an_error<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    let sent = send_some(&place, 2).await;
    let came = receive(&source, 2).await;
    assert_eq!(ids(&came), sent);
    place.proxy().stall();
    let answers = timeout(PATIENCE, source.acknowledge(&tickets(&came))).await.expect("an answer");
    assert_eq!(answers.len(), 2);
    for answer in answers {
        let error = answer.expect_err("nobody has confirmed it");
        assert_eq!(error.kind(), SinkErrorKind::Unavailable, "{error}");
    }
    place.proxy().cut();
    place.proxy().resume();
    let (left, source) = (sent, place.source(GROUP, SOON));
    // What was held back may have reached the broker or not.
    let mut done = seen_within(&source, SOON * 3).await;
    let sent = send_some(&place, 1).await;
    while !sent.is_subset(&done) {
        done.extend(ids(&receive(&source, 1).await));
    }
    assert!(done.difference(&sent).all(|id| left.contains(id)), "{done:?}");
}

/// I4: what was sent and not acknowledged comes, however often the broker dies.
pub async fn a_restart_of_the_broker_loses_nothing<P: Place>() {
    let mut place = P::private().await;
    place.prepare(GROUP).await;
    let source = place.source(GROUP, SOON);
    let mut left = send_some(&place, 6).await;
    let before = receive(&source, 3).await;
    assert_eq!(source.acknowledge(&[before[0].ticket]).await, [Ok(())]);
    left.remove(&id(&before[0]));
    place.restart();
    if P::keeps_messages() {
        until_acknowledged(&source, &before[1..]).await;
        left = left.difference(&ids(&before)).cloned().collect();
    }
    left.extend(send_some(&place, 3).await);
    while !left.is_empty() {
        for came in receive(&source, 1).await {
            if source.acknowledge(&[came.ticket]).await == [Ok(())] {
                left.remove(&id(&came));
            }
        }
    }
}
