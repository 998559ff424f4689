//! The body of an event: serialised once by the writer, and never touched again.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::event::EventError;

/// The content type of JSON payloads.
pub const JSON: &str = "application/json";

/// JSON text or bytes, with a content type. What a handler gets is byte for byte what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    content_type: Cow<'static, str>,
    body: Bytes,
    text: bool,
}

impl Payload {
    /// Serialises a value as JSON, this once.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, EventError> {
        let body = serde_json::to_vec(value).map_err(|error| EventError::NotJson(error.to_string()))?;
        Ok(Self { content_type: Cow::Borrowed(JSON), body: body.into(), text: true })
    }

    /// Takes JSON text as it stands; what is not JSON is refused.
    pub fn json_text(text: impl Into<String>) -> Result<Self, EventError> {
        let text = text.into();
        serde_json::from_str::<serde::de::IgnoredAny>(&text).map_err(|error| EventError::NotJson(error.to_string()))?;
        Ok(Self { content_type: Cow::Borrowed(JSON), body: text.into(), text: true })
    }

    /// Takes bytes of any content type.
    pub fn bytes(content_type: impl AsRef<str> + Into<Box<str>>, body: impl Into<Bytes>) -> Self {
        Self::stored(content_type, body, false)
    }

    /// A payload read back from a store: `text` is whether the store kept it as text.
    pub fn stored(content_type: impl AsRef<str> + Into<Box<str>>, body: impl Into<Bytes>, text: bool) -> Self {
        // Hardly any is another, and this one need not be copied.
        let is_json = content_type.as_ref() == JSON;
        let content_type = if is_json { JSON.into() } else { content_type.into().into_string().into() };
        Self { content_type, body: body.into(), text }
    }

    /// What the bytes are, such as `application/json`.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Whether its content type says that it is JSON: `application/json`, or one that ends with `+json`.
    pub fn is_json(&self) -> bool {
        let essence = self.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        essence == JSON || essence.ends_with("+json")
    }

    /// The bytes as they were written.
    pub fn as_bytes(&self) -> &Bytes {
        &self.body
    }

    /// The payload as text, if it was written as JSON text.
    pub fn as_text(&self) -> Option<&str> {
        if self.text { std::str::from_utf8(&self.body).ok() } else { None }
    }

    /// Reads the payload as JSON.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// The size in bytes.
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_text_is_kept_to_the_byte() {
        let text = "{ \"b\" : 1,\n \"a\":2.50 }";
        assert_eq!(Payload::json_text(text).unwrap().as_text(), Some(text));
    }

    #[test]
    fn what_is_not_json_is_refused_as_json() {
        assert!(matches!(Payload::json_text("{oops}"), Err(EventError::NotJson(_))));
        assert!(matches!(Payload::json_text(""), Err(EventError::NotJson(_))));
    }

    #[test]
    fn bytes_are_not_text() {
        let payload = Payload::bytes("application/x-protobuf", vec![0, 159, 146, 150]);
        assert_eq!(payload.as_text(), None);
        assert_eq!(&payload.as_bytes()[..], [0, 159, 146, 150]);
    }
}
