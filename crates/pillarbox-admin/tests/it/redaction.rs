//! What some must not see is in nothing that they are given.

use pillarbox_admin::Redaction;
use serde_json::json;

use crate::bed::{ADA, Bed, VIC, id, tokens};

fn rules() -> Redaction {
    Redaction::new().path("$.card.number").unwrap().path("$..email").unwrap().header("authorization")
}

const SECRETS: [&str; 3] = ["4711-0815", "c2VjcmV0", "ada@example.org"];

async fn bed(rules: Redaction) -> Bed {
    let bed = Bed::with(tokens(), |admin| admin.redact(rules)).await;
    bed.insert(20, "DEAD", "Mailed", r#"{"to": [{"email": "ada@example.org"}], "n": 1}"#).await;
    bed.run("update outbox_event set last_error = 'no mail to ada@example.org' where seq = 20").await;
    bed.insert(21, "DEAD", "Plain", "x").await;
    bed.run("update outbox_event set payload = 'mail ada@example.org', content_type = 'text/plain', last_error = null where seq = 21")
        .await;
    bed
}

/// An error outlives the payload that it quotes: what an edit has replaced is taken out of it too.
#[tokio::test]
async fn an_error_shows_nothing_of_a_payload_that_was_edited() {
    for rules in [rules(), rules().hide_payloads()] {
        let bed = bed(rules).await;
        let edit = async |number, payload| {
            let edit = json!({ "payload": payload });
            bed.send("PUT", &format!("/events/{}/payload", id(number)), Some(ADA), Some(edit)).await.ok();
        };
        // Twice, so that the last one but one is looked at; and to a payload that has none of the paths.
        edit(3, json!({ "card": { "number": "0000-0000" } })).await;
        edit(3, json!({ "card": null })).await;
        edit(21, json!("new")).await;
        bed.run("update outbox_event set last_error = 'no mail to ada@example.org' where seq = 21").await;
        for path in ["/events/3", "/events/21", "/events?limit=500", "/dead?limit=500"] {
            let seen = bed.send("GET", path, Some(VIC), None).await;
            assert!(SECRETS.iter().all(|secret| !seen.text.contains(secret)), "{path}: {}", seen.text);
            seen.ok();
        }
        let seen = async |path| bed.send("GET", path, Some(VIC), None).await.ok()["last_error"].clone();
        assert_eq!(seen("/events/3").await, "the carrier refused it: card [redacted] of 3");
        assert_eq!(seen("/events/21").await, "[redacted]", "nobody knows where in a text the values are");
        assert_eq!(bed.get("/events/3").await.ok()["last_error"], "the carrier refused it: card 4711-0815 of 3");
    }
}

/// The record of an edit has the id as it stands in the row, which is not always as ids are written by us.
#[tokio::test]
async fn an_error_shows_nothing_of_what_was_edited_under_an_id_in_small_letters() {
    let bed = bed(rules()).await;
    bed.run("update outbox_event set event_id = '01arz3ndektsv4rrffq69g5fav' where seq = 3").await;
    let edit = json!({ "payload": { "card": { "number": "0000-0000" } } });
    bed.send("PUT", "/events/3/payload", Some(ADA), Some(edit)).await.ok();
    for path in ["/events/3", "/events?limit=500", "/dead?limit=500"] {
        let seen = bed.send("GET", path, Some(VIC), None).await;
        assert!(SECRETS.iter().all(|secret| !seen.text.contains(secret)), "{path}: {}", seen.text);
        assert!(seen.text.contains("the carrier refused it: card [redacted] of 3"), "{path}: {}", seen.text);
    }
}

/// A row that can't be decoded has values that nobody has looked at.
#[tokio::test]
async fn an_error_of_what_can_not_be_decoded_is_not_shown() {
    let bed = bed(rules()).await;
    bed.run("update outbox_event set headers = '\"c2VjcmV0\"' where seq = 3").await;
    let seen = bed.send("GET", "/events/3", Some(VIC), None).await;
    assert!(SECRETS.iter().all(|secret| !seen.text.contains(secret)), "{}", seen.text);
    assert_eq!(seen.ok()["undecodable"], "[redacted]");
}

const LOOKS: [&str; 6] = ["/events?limit=500", "/events/3", "/events/20", "/events/21", "/dead?limit=500", "/actions"];

#[tokio::test]
async fn a_viewer_is_given_no_redacted_value_anywhere() {
    let bed = bed(rules()).await;
    // An edit keeps the old payload, which is a payload too, and the error, which quotes it.
    let edit = json!({ "payload": { "card": { "number": "0000-0000" } } });
    bed.send("PUT", &format!("/events/{}/payload", id(3)), Some(ADA), Some(edit)).await.ok();
    for path in LOOKS {
        let seen = bed.send("GET", path, Some(VIC), None).await;
        for secret in SECRETS {
            assert!(!seen.text.contains(secret), "{path} shows {secret}: {}", seen.text);
        }
        seen.ok();
    }
    let whole: String = {
        let mut texts = String::new();
        for path in LOOKS {
            texts += &bed.get(path).await.text;
        }
        texts
    };
    for secret in SECRETS {
        assert!(whole.contains(secret), "an operator sees {secret}");
    }
    let seen = bed.send("GET", "/events/3", Some(VIC), None).await.ok();
    assert_eq!(seen["payload"], json!({ "card": { "number": "[redacted]" } }));
    assert_eq!(seen["headers"], json!({ "authorization": "[redacted]", "source": "web" }));
    assert_eq!(seen["payload_shown"], "redacted");
    assert_eq!(seen["last_error"], "the carrier refused it: card [redacted] of 3");
    let hidden = bed.send("GET", "/events/21", Some(VIC), None).await.ok();
    assert_eq!((&hidden["payload_shown"], hidden.get("payload")), (&json!("hidden"), None));
}

/// To try one text after another is a way to read.
#[tokio::test]
async fn who_sees_by_rules_can_not_search() {
    let bed = bed(rules()).await;
    for path in ["/events?text=4711", "/events/count?text=4711", "/dead?text=4711", "/dead/count?text=x"] {
        bed.send("GET", path, Some(VIC), None).await.problem(403);
        bed.get(path).await.ok();
    }
    let everybody = self::bed(rules().for_everybody()).await;
    everybody.get("/events?text=4711").await.problem(403);
    everybody.post("/events/discard", json!({ "filter": { "text": "4711" } })).await.problem(403);
    let seen = everybody.get("/events?limit=500").await;
    assert!(SECRETS.iter().all(|secret| !seen.text.contains(secret)), "{}", seen.text);
}

#[tokio::test]
async fn errors_and_payloads_can_be_hidden_altogether() {
    let bed = bed(Redaction::new().hide_errors().hide_payloads()).await;
    let seen = bed.send("GET", "/events/20", Some(VIC), None).await.ok();
    assert_eq!((&seen["last_error"], &seen["payload_shown"]), (&json!("[redacted]"), &json!("hidden")));
    assert!(bed.get("/events/20").await.text.contains("no mail to"));
}

#[tokio::test]
async fn payloads_can_be_left_out_of_a_list() {
    let bed = Bed::new().await;
    let page = bed.get("/events?payloads=false&status=DEAD").await;
    assert!(!page.text.contains("\"payload\":"), "{}", page.text);
    assert_eq!(page.ok()["events"][0]["payload_shown"], "left_out");
    assert_eq!(bed.get("/events?payloads=no").await.problem(400)["parameter"], "payloads");
}
