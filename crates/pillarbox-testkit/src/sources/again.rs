//! What comes again, and what does not: acknowledged, held, given back, or none of them.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox_core::port::{Source as _, Ticket};

use super::{
    GROUP, LATE, Place, SOON, WAIT,
    steps::{come_again, fresh, id, ids, receive, receive_within, seen_within, send_some, tickets, until_acknowledged},
};

/// I4: not to this one, not after a reconnect, not to the next of its group.
pub async fn what_is_acknowledged_does_not_come_again<P: Place>() {
    let place = fresh::<P>().await;
    let source = place.source(GROUP, SOON);
    let mut done = BTreeSet::new();
    for round in 0..3 {
        let sent = send_some(&place, 5).await;
        let mut fresh = BTreeSet::new();
        while fresh.len() < sent.len() {
            for came in receive(&source, 1).await {
                assert!(!done.contains(&id(&came)), "round {round}: {came:?} was acknowledged");
                assert_eq!(source.acknowledge(&[came.ticket]).await, [Ok(())]);
                fresh.insert(id(&came));
            }
        }
        assert_eq!(fresh, sent);
        done.extend(fresh);
        if round == 1 {
            place.proxy().cut();
        }
    }
    assert_eq!(seen_within(&source, SOON * 2).await, BTreeSet::new());
    source.close().await;
    drop(source);
    let next = place.source(GROUP, SOON);
    assert_eq!(seen_within(&next, SOON).await, BTreeSet::new());
    let sent = send_some(&place, 2).await;
    assert_eq!(ids(&receive(&next, 2).await), sent);
}

/// I4
pub async fn what_is_not_acknowledged_comes_again_after_the_connection_is_lost<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 4).await;
    let source = place.source(GROUP, SOON);
    let first = receive(&source, 4).await;
    assert_eq!(ids(&first), sent);
    place.proxy().cut();
    if P::keeps_messages() {
        until_acknowledged(&source, &first).await;
        return;
    }
    come_again(&source, &sent).await;
}

/// I4: the process has died, say.
pub async fn what_is_not_acknowledged_comes_again_after_its_consumer_is_gone<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 4).await;
    let source = place.source(GROUP, SOON);
    assert_eq!(ids(&receive(&source, 4).await), sent);
    drop(source);
    come_again(&place.source(GROUP, SOON), &sent).await;
}

/// I4: a handler that has hung, say.
pub async fn what_is_not_acknowledged_comes_again_after_its_time<P: Place>() {
    let place = fresh::<P>().await;
    let (source, other) = (place.source(GROUP, SOON), place.another(GROUP, SOON));
    if source.gives().again_after.is_none() {
        return;
    }
    let sent = send_some(&place, 4).await;
    assert_eq!(ids(&receive(&source, 4).await), sent);
    come_again(&other, &sent).await;
}

/// I4: a handler that needs longer.
pub async fn what_is_held_stays_where_it_is<P: Place>() {
    let place = fresh::<P>().await;
    let span = SOON * 2;
    let (source, other) = (place.source(GROUP, span), place.another(GROUP, span));
    if source.gives().again_after.is_none() {
        return;
    }
    send_some(&place, 3).await;
    let held = tickets(&receive(&source, 3).await);
    let holding = async {
        loop {
            source.hold(&held).await;
            tokio::time::sleep(span / 10).await;
        }
    };
    let seen = tokio::select! {
        () = holding => unreachable!("it holds for ever"),
        seen = seen_within(&other, span * 2) => seen,
    };
    assert_eq!(seen, BTreeSet::new());
    assert_eq!(source.acknowledge(&held).await, [Ok(()), Ok(()), Ok(())]);
    // What was held and is let go comes again.
    let sent = send_some(&place, 2).await;
    let held = tickets(&receive(&source, 2).await);
    source.hold(&held).await;
    come_again(&other, &sent).await;
}

/// I4: soon, and not only when everything else has gone wrong.
pub async fn what_is_given_back_comes_again<P: Place>() {
    let place = fresh::<P>().await;
    let sent = send_some(&place, 3).await;
    let source = place.source(GROUP, LATE);
    let first = receive(&source, 3).await;
    assert_eq!(source.acknowledge(&[first[1].ticket]).await, [Ok(())]);
    source.give_back(&[first[0].ticket, first[2].ticket]).await;
    let mut again = BTreeMap::new();
    while again.len() < 2 {
        for came in receive(&source, 1).await {
            assert!(came.deliveries > 1 || !source.gives().counts, "{came:?}");
            again.insert(id(&came), came.ticket);
        }
    }
    assert!(!again.contains_key(&id(&first[1])) && again.keys().all(|id| sent.contains(id)), "{again:?}");
    // Twice is no harm, nor is nothing.
    source.give_back(&[first[0].ticket]).await;
    source.give_back(&[]).await;
    for ticket in again.into_values() {
        assert_eq!(source.acknowledge(&[ticket]).await, [Ok(())]);
    }
    // Unless the second give-back brought it, and it is there once more.
    for came in receive_within(&source, WAIT * 2).await {
        assert_eq!(id(&came), id(&first[0]));
    }
}

/// I4
pub async fn acknowledgements_come_in_any_order_and_have_one_answer_each<P: Place>() {
    let place = fresh::<P>().await;
    send_some(&place, 10).await;
    let source = place.source(GROUP, LATE);
    assert_eq!(source.acknowledge(&[]).await, []);
    let mut came = receive(&source, 10).await;
    let first = came.remove(0);
    came.reverse();
    came.swap(1, 5);
    let mut mixed = tickets(&came);
    mixed.insert(4, Ticket(u64::MAX));
    let answers = source.acknowledge(&mixed).await;
    assert_eq!(answers.len(), mixed.len());
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_err(), n == 4, "{n}: {answer:?}");
    }
    assert_eq!(source.acknowledge(&[first.ticket]).await, [Ok(())]);
    assert_eq!(seen_within(&source, WAIT).await, BTreeSet::new());
    drop(source);
    assert_eq!(seen_within(&place.source(GROUP, LATE), WAIT * 2).await, BTreeSet::new());
}

/// I4: an error, or it is true that the message does not come again; and nothing else suffers.
pub async fn a_ticket_of_a_lost_connection_is_told_the_truth<P: Place>() {
    let place = fresh::<P>().await;
    let mut sent = send_some(&place, 3).await;
    let source = place.source(GROUP, SOON);
    let old = receive(&source, 3).await;
    place.proxy().cut();
    sent.extend(send_some(&place, 3).await);
    let mut seen = BTreeMap::new();
    while seen.len() < 3 {
        for came in receive(&source, 1).await {
            seen.insert(id(&came), came.ticket);
        }
    }
    let answers = source.acknowledge(&tickets(&old)).await;
    assert_eq!(answers.len(), old.len());
    let done: BTreeSet<_> =
        old.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(old, _)| id(old)).collect();
    source.give_back(&tickets(&old)).await;
    source.hold(&tickets(&old)).await;
    // What was under way before the acknowledgement may have come; what comes now was not acknowledged.
    let mut left: BTreeSet<_> = sent.difference(&done).cloned().collect();
    for (id, ticket) in seen {
        if source.acknowledge(&[ticket]).await == [Ok(())] {
            left.remove(&id);
        }
    }
    while !left.is_empty() {
        for came in receive(&source, 1).await {
            if source.acknowledge(&[came.ticket]).await == [Ok(())] {
                left.remove(&id(&came));
            }
        }
    }
    assert_eq!(seen_within(&source, SOON * 2).await, BTreeSet::new());
}
