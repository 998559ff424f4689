//! From a message to a request, as the HTTP binding of CloudEvents 1.0 has it.

use std::{borrow::Cow, time::SystemTime};

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use pillarbox_core::port::{Message, SinkError};
use reqwest::{
    Body, Method, Request, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};

use crate::{Secret, signature};

/// What the binding tells to encode in attributes: space, `"`, `%`, and all but printable ASCII.
const ATTRIBUTE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');
/// What HTTP can't carry in other headers, and the sign that tells of it.
const VALUE: &AsciiSet = &CONTROLS.add(b'%');
/// All but what the name of a header may have. `%` may, and is encoded for what it means here.
const NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// The request of one attempt. `fixed` are the headers that every request has; the client adds them.
pub(crate) fn request(
    message: &Message,
    target: Url,
    fixed: &HeaderMap,
    secrets: &[Secret],
    now: SystemTime,
) -> Result<Request, SinkError> {
    let mut request = Request::new(Method::POST, target);
    *request.headers_mut() = headers(message, fixed)?;
    if !secrets.is_empty() {
        sign(request.headers_mut(), message, secrets, now)?;
    }
    *request.body_mut() = Some(Body::from(message.payload.clone()));
    Ok(request)
}

/// Whether a header is the sink's own, or the connection's. In lower case.
pub(crate) fn is_reserved(name: &str) -> bool {
    const OWN: [&str; 13] = [
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    OWN.contains(&name) || name.starts_with("ce-") || name.starts_with("webhook-")
}

/// Who is at the other end, without a password.
pub(crate) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// The URL without what may be secret: user, password, query.
pub(crate) fn place(url: &Url) -> String {
    format!("{}{}", origin(url), url.path())
}

fn headers(message: &Message, fixed: &HeaderMap) -> Result<HeaderMap, SinkError> {
    let mut headers = HeaderMap::with_capacity(16);
    let content_type = HeaderValue::try_from(&*message.content_type);
    let content_type = content_type.map_err(|_| refused("content-type", "has a value that HTTP can't carry"))?;
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert("idempotency-key", text("idempotency-key", message.id.to_string().into())?);
    let is_binary = !message.attributes.is_empty();
    let key = message.key.as_ref().filter(|_| is_binary).map(|key| ("partitionkey", key.as_str()));
    for (name, value) in key.into_iter().chain(message.attributes.iter().map(|(name, value)| (&**name, &**value))) {
        // The binding's place for it is content-type.
        if name != "datacontenttype" {
            let full = attribute(name)?;
            let value = text(full.as_str(), utf8_percent_encode(value, ATTRIBUTE).into())?;
            headers.insert(full, value);
        }
    }
    for (name, value) in &message.headers {
        let encoded = utf8_percent_encode(name, NAME).to_string().to_ascii_lowercase();
        if is_reserved(&encoded) || fixed.contains_key(&encoded) {
            return Err(refused(name, "would replace one of the sink's own"));
        }
        let value = text(name, carried(&encoded, value))?;
        headers.append(HeaderName::try_from(encoded).map_err(|_| refused(name, "is no header"))?, value);
    }
    Ok(headers)
}

/// The header of an attribute. Those that every message has need not be made.
fn attribute(name: &str) -> Result<HeaderName, SinkError> {
    const KNOWN: [(&str, HeaderName); 9] = [
        ("id", HeaderName::from_static("ce-id")),
        ("partitionkey", HeaderName::from_static("ce-partitionkey")),
        ("source", HeaderName::from_static("ce-source")),
        ("specversion", HeaderName::from_static("ce-specversion")),
        ("subject", HeaderName::from_static("ce-subject")),
        ("tenantid", HeaderName::from_static("ce-tenantid")),
        ("time", HeaderName::from_static("ce-time")),
        ("traceparent", HeaderName::from_static("ce-traceparent")),
        ("type", HeaderName::from_static("ce-type")),
    ];
    if let Some((_, known)) = KNOWN.iter().find(|(known, _)| *known == name) {
        return Ok(known.clone());
    }
    let full = format!("ce-{name}");
    HeaderName::try_from(&full).map_err(|_| refused(&full, "is no header"))
}

fn sign(headers: &mut HeaderMap, message: &Message, secrets: &[Secret], now: SystemTime) -> Result<(), SinkError> {
    let (id, timestamp) = (message.id.to_string(), signature::seconds_of(now).to_string());
    let signatures: Vec<_> = secrets.iter().map(|secret| secret.sign(&id, &timestamp, &message.payload)).collect();
    for (name, value) in
        [(signature::ID, id), (signature::TIMESTAMP, timestamp), (signature::SIGNATURE, signatures.join(" "))]
    {
        headers.insert(name, text(name, value.into())?);
    }
    Ok(())
}

/// The value as HTTP can carry it.
fn carried<'a>(name: &str, value: &'a str) -> Cow<'a, str> {
    if matches!(name, "traceparent" | "tracestate" | "baggage") {
        return value.into();
    }
    let encoded = Cow::from(utf8_percent_encode(value, VALUE));
    // Spaces at the ends are the protocol's, and would be lost.
    let inner = encoded.trim_matches(' ');
    if inner.len() == encoded.len() {
        return encoded;
    }
    let before = encoded.len() - encoded.trim_start_matches(' ').len();
    let after = encoded.len() - before - inner.len();
    [&"%20".repeat(before), inner, &"%20".repeat(after)].concat().into()
}

fn text(name: &str, value: Cow<'_, str>) -> Result<HeaderValue, SinkError> {
    let value = match value {
        Cow::Borrowed(text) => HeaderValue::from_str(text),
        Cow::Owned(text) => HeaderValue::try_from(text),
    };
    value.map_err(|_| refused(name, "has a value that HTTP can't carry"))
}

fn refused(name: &str, why: &str) -> SinkError {
    SinkError::unfit(format_args!("the header {name:?} {why}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use percent_encoding::percent_decode_str;
    use pillarbox_core::{Event, domain::Key, port::SinkErrorKind};
    use reqwest::header::AUTHORIZATION;

    use super::*;

    fn message() -> Message {
        Message {
            topic: "orders".into(),
            key: Some(Key::from("order 7")),
            id: Event::builder("OrderPlaced").json(&()).build().expect("an event").id(),
            content_type: "application/json".into(),
            attributes: vec![
                ("specversion".into(), "1.0".into()),
                ("datacontenttype".into(), "application/json".into()),
            ],
            headers: Vec::new(),
            payload: Bytes::from_static(b"{}"),
        }
    }

    fn headers(message: &Message) -> Result<HeaderMap, SinkError> {
        super::headers(message, &HeaderMap::new())
    }

    #[test]
    fn attributes_are_encoded_as_the_binding_says() {
        let mut message = message();
        message.attributes.push(("subject".into(), "Euro € 😀 \"100 %\"\n".into()));
        let headers = headers(&message).expect("headers");
        let expected = "Euro%20%E2%82%AC%20%F0%9F%98%80%20%22100%20%25%22%0A";
        assert_eq!(headers["ce-subject"], expected);
        assert_eq!(headers["ce-specversion"], "1.0");
        assert_eq!(headers["ce-partitionkey"], "order%207");
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["idempotency-key"], message.id.to_string().as_str());
        assert!(!headers.contains_key("ce-datacontenttype"), "content-type has it");
    }

    #[test]
    fn without_attributes_there_are_none() {
        let mut message = message();
        message.attributes.clear();
        let headers = headers(&message).expect("headers");
        assert!(headers.keys().all(|name| !name.as_str().starts_with("ce-")), "{headers:?}");
    }

    #[test]
    fn other_headers_decode_to_what_was_sent() {
        for value in
            ["plain text, with \"quotes\"", "grün & 100 %", " ends ", "   ", "", "a\r\nhost: b", "\u{7f}\0", "%41"]
        {
            let mut message = message();
            message.headers.push(("X-Note".into(), value.into()));
            let headers = headers(&message).expect("headers");
            let carried = headers["x-note"].to_str().expect("text");
            assert_eq!(carried.trim_matches([' ', '\t']), carried, "{value:?}");
            assert_eq!(percent_decode_str(carried).decode_utf8().expect("text"), value);
        }
        assert_eq!(carried("x-note", "plain text, with \"quotes\""), "plain text, with \"quotes\"");
    }

    #[test]
    fn names_that_http_does_not_know_are_encoded() {
        let mut message = message();
        message.headers.push(("Straße & 1:2".into(), "x".into()));
        assert_eq!(headers(&message).expect("headers")["stra%c3%9fe%20&%201%3a2"], "x");
    }

    #[test]
    fn trace_context_is_left_as_it_is() {
        let mut message = message();
        for (name, value) in
            [("traceparent", "00-01-02-01"), ("Tracestate", "a=1, b=%41"), ("baggage", "user=gr%C3%BCn")]
        {
            message.headers.push((name.into(), value.into()));
        }
        let headers = headers(&message).expect("headers");
        assert_eq!(
            (&headers["tracestate"], &headers["baggage"]),
            (&"a=1, b=%41".parse().unwrap(), &"user=gr%C3%BCn".parse().unwrap())
        );
    }

    #[test]
    fn what_would_replace_the_sinks_own_headers_is_rejected() {
        for name in [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "ce-id",
            "CE-type",
            "webhook-signature",
            "Idempotency-Key",
            "",
        ] {
            let mut message = message();
            message.headers.push((name.into(), "x".into()));
            assert_eq!(headers(&message).expect_err(name).kind(), SinkErrorKind::Rejected, "{name}");
        }
        let mut message = message();
        message.content_type = "text/plain\r\nhost: x".into();
        assert_eq!(headers(&message).expect_err("a refusal").kind(), SinkErrorKind::Rejected);
    }

    #[test]
    fn what_would_replace_a_header_of_the_options_is_rejected() {
        let fixed = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer hush"))]);
        let mut message = message();
        message.headers.push(("Authorization".into(), "Bearer forged".into()));
        let refused = super::headers(&message, &fixed).expect_err("a refusal");
        assert_eq!(refused.kind(), SinkErrorKind::Rejected);
        assert!(refused.to_string().contains("Authorization") && !refused.to_string().contains("hush"), "{refused}");
        // Where the sink has none, it is the event's.
        assert_eq!(headers(&message).expect("headers")[AUTHORIZATION], "Bearer forged");
    }

    #[test]
    fn requests_are_signed_with_every_secret() {
        let secrets = ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"];
        let secrets = secrets.map(|secret| Secret::parse(secret).expect("a secret"));
        let base = Url::parse("https://shop.example").expect("a URL");
        let request = request(&message(), base, &HeaderMap::new(), &secrets, SystemTime::now()).expect("a request");
        for secret in &secrets {
            let tolerance = std::time::Duration::from_secs(10);
            assert_eq!(crate::verify(secret, request.headers(), b"{}", tolerance), Ok(()));
        }
    }
}
