//! How a typed event becomes bytes, and bytes a typed event again.
//!
//! The content type travels with the payload, so a reader needs to know the formats and not which one a writer chose.

use std::{fmt, sync::Arc};

use erased_serde::{Deserializer as AnyDeserializer, Serialize as AnySerialize};
use serde::{Serialize, de::DeserializeOwned};

use super::{JSON, Payload};

/// Takes a value from a deserializer that a [`Codec`] has set up.
pub type Reads<'a, 'de> = &'a mut dyn FnMut(&mut dyn AnyDeserializer<'de>) -> Result<(), erased_serde::Error>;

/// A format for payloads. Implement it for a format of your own; an outbox writes with the one it is given, and reads
/// every one it knows.
///
/// ```
/// use pillarbox_core::domain::{Codec, CodecError, Reads};
///
/// /// JSON that people can read.
/// #[derive(Debug)]
/// struct PrettyJson;
///
/// impl Codec for PrettyJson {
///     fn content_type(&self) -> &'static str {
///         "application/json; pretty"
///     }
///
///     fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
///         serde_json::to_vec_pretty(value).map_err(CodecError::new)
///     }
///
///     fn decode<'de>(&self, body: &'de [u8], read: Reads<'_, 'de>) -> Result<(), CodecError> {
///         let mut json = serde_json::Deserializer::from_slice(body);
///         read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json)).map_err(CodecError::new)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a codec",
    note = "`Json` is, and `MessagePack` with the feature `messagepack`; or implement `Codec` for a type of your own"
)]
pub trait Codec: fmt::Debug + Send + Sync + 'static {
    /// What the bytes are called; it travels with the payload, and is how a reader finds the codec.
    fn content_type(&self) -> &'static str;

    /// A value as bytes.
    fn encode(&self, value: &dyn AnySerialize) -> Result<Vec<u8>, CodecError>;

    /// Reads a value from bytes.
    fn decode<'de>(&self, body: &'de [u8], read: Reads<'_, 'de>) -> Result<(), CodecError>;
}

/// JSON: what every outbox writes unless it is told otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl Codec for Json {
    fn content_type(&self) -> &'static str {
        JSON
    }

    fn encode(&self, value: &dyn AnySerialize) -> Result<Vec<u8>, CodecError> {
        serde_json::to_vec(value).map_err(CodecError::new)
    }

    fn decode<'de>(&self, body: &'de [u8], read: Reads<'_, 'de>) -> Result<(), CodecError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        read(&mut <dyn AnyDeserializer<'_>>::erase(&mut json)).map_err(CodecError::new)?;
        json.end().map_err(CodecError::new)
    }
}

/// MessagePack, with the names of fields, so that fields can be added and reordered.
#[cfg(feature = "messagepack")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MessagePack;

#[cfg(feature = "messagepack")]
impl Codec for MessagePack {
    fn content_type(&self) -> &'static str {
        "application/vnd.msgpack"
    }

    fn encode(&self, value: &dyn AnySerialize) -> Result<Vec<u8>, CodecError> {
        rmp_serde::to_vec_named(value).map_err(CodecError::new)
    }

    fn decode<'de>(&self, body: &'de [u8], read: Reads<'_, 'de>) -> Result<(), CodecError> {
        let mut pack = rmp_serde::Deserializer::from_read_ref(body);
        read(&mut <dyn AnyDeserializer<'_>>::erase(&mut pack)).map_err(CodecError::new)
    }
}

/// Protobuf, for types that `prost` knows. It is chosen by the event: `#[outbox(protobuf)]`.
#[cfg(feature = "protobuf")]
pub mod protobuf {
    use super::{CodecError, Payload};

    /// The content type of Protobuf payloads.
    pub const CONTENT_TYPE: &str = "application/x-protobuf";

    /// A message as a payload.
    pub fn encode<M: prost::Message>(message: &M) -> Payload {
        Payload::bytes(CONTENT_TYPE, message.encode_to_vec())
    }

    /// A payload as a message.
    pub fn decode<M: prost::Message + Default>(payload: &Payload) -> Result<M, CodecError> {
        if payload.content_type() != CONTENT_TYPE {
            return Err(CodecError::unknown(payload.content_type(), &[CONTENT_TYPE]));
        }
        M::decode(payload.as_bytes().clone()).map_err(CodecError::new)
    }
}

/// The formats that an outbox knows: it writes with the first, and reads each by its content type.
///
/// ```
/// # use pillarbox_core::{Outbox, domain::Json, port::Store};
/// # fn example<S: Store>(store: S) {
/// let outbox = Outbox::single_node(store).codec(Json); // or `MessagePack`, or a format of your own
/// # }
/// ```
#[derive(Clone)]
pub struct Codecs(Arc<[Arc<dyn Codec>]>);

impl Codecs {
    /// Writes with this one. It reads it too, and what is known without being named: JSON, and MessagePack where the
    /// feature is on.
    pub fn of(writes: impl Codec) -> Self {
        let mut codecs: Vec<Arc<dyn Codec>> = vec![Arc::new(writes)];
        let built_in: Vec<Arc<dyn Codec>> = vec![
            Arc::new(Json),
            #[cfg(feature = "messagepack")]
            Arc::new(MessagePack),
        ];
        for codec in built_in {
            if codecs.iter().all(|known| known.content_type() != codec.content_type()) {
                codecs.push(codec);
            }
        }
        Self(codecs.into())
    }

    /// The same, and this one is read as well. One of the same content type is replaced.
    #[must_use]
    pub fn and(self, reads: impl Codec) -> Self {
        let mut codecs = self.0.to_vec();
        match codecs.iter_mut().find(|known| known.content_type() == reads.content_type()) {
            Some(known) => *known = Arc::new(reads),
            None => codecs.push(Arc::new(reads)),
        }
        Self(codecs.into())
    }

    /// A value as a payload.
    pub fn encode<T: Serialize + ?Sized>(&self, value: &T) -> Result<Payload, CodecError> {
        let writes = &self.0[0];
        let content_type = writes.content_type();
        // JSON is kept as text, so that people can read it in the table.
        Ok(Payload::stored(content_type, writes.encode(&value)?, content_type == JSON))
    }

    /// A payload as a value, by its content type.
    pub fn decode<T: DeserializeOwned>(&self, payload: &Payload) -> Result<T, CodecError> {
        let content_type = payload.content_type();
        let Some(codec) = self.0.iter().find(|codec| codec.content_type() == content_type) else {
            let known: Vec<_> = self.0.iter().map(|codec| codec.content_type()).collect();
            return Err(CodecError::unknown(content_type, &known));
        };
        let mut value = None;
        codec.decode(payload.as_bytes(), &mut |deserializer| {
            value = Some(erased_serde::deserialize(deserializer)?);
            Ok(())
        })?;
        value.ok_or_else(|| CodecError::new("the codec read no value"))
    }
}

impl Default for Codecs {
    fn default() -> Self {
        Self::of(Json)
    }
}

impl fmt::Debug for Codecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|codec| codec.content_type())).finish()
    }
}

/// Why a payload could not be made or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecError(String);

impl CodecError {
    /// For this reason.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self(reason.to_string())
    }

    /// The event was written with a version of its schema that its type does not read.
    pub fn former(version: u32, current: u32) -> Self {
        Self(format!(
            "it has version {version} of its schema, and its type is version {current}: set `upcast` to read former ones"
        ))
    }

    /// The event was written with a version of its schema that its type does not know yet.
    pub fn newer(version: u32, current: u32) -> Self {
        Self(format!("it has version {version} of its schema, and its type knows only {current}: deploy the newer one"))
    }

    fn unknown(content_type: &str, known: &[&str]) -> Self {
        Self(format!("the payload is {content_type}, and this outbox reads {}", known.join(", ")))
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CodecError {}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Placed {
        order: u32,
        note: Option<String>,
    }

    fn placed() -> Placed {
        Placed { order: 7, note: Some("as a gift".into()) }
    }

    #[test]
    fn what_is_written_is_read_by_its_content_type() {
        let payload = Codecs::default().encode(&placed()).unwrap();
        assert_eq!((payload.content_type(), payload.as_text()), (JSON, Some("{\"order\":7,\"note\":\"as a gift\"}")));
        assert_eq!(Codecs::default().decode::<Placed>(&payload).unwrap(), placed());
    }

    #[cfg(feature = "messagepack")]
    #[test]
    fn an_outbox_that_writes_messagepack_reads_json_as_well() {
        let codecs = Codecs::of(MessagePack);
        let packed = codecs.encode(&placed()).unwrap();
        assert_eq!(packed.as_text(), None);
        assert_eq!(codecs.decode::<Placed>(&packed).unwrap(), placed());
        assert_eq!(codecs.decode::<Placed>(&Payload::json(&placed()).unwrap()).unwrap(), placed());
    }

    #[test]
    fn an_unknown_content_type_is_named_with_those_that_are_known() {
        let error = Codecs::default().decode::<Placed>(&Payload::bytes("text/csv", "7")).unwrap_err().to_string();
        assert!(error.contains("text/csv") && error.contains(JSON), "{error}");
    }

    #[test]
    fn what_follows_a_value_is_not_passed_over() {
        let payload = Payload::stored(JSON, "{\"order\":7} {\"order\":8}", true);
        assert!(Codecs::default().decode::<Placed>(&payload).is_err());
    }

    #[derive(Debug)]
    struct Shouting;

    impl Codec for Shouting {
        fn content_type(&self) -> &'static str {
            "text/shouting"
        }

        fn encode(&self, value: &dyn AnySerialize) -> Result<Vec<u8>, CodecError> {
            Ok(Json.encode(value)?.to_ascii_uppercase())
        }

        fn decode<'de>(&self, body: &'de [u8], read: Reads<'_, 'de>) -> Result<(), CodecError> {
            let quiet = body.to_ascii_lowercase();
            let value: serde_json::Value = serde_json::from_slice(&quiet).map_err(CodecError::new)?;
            read(&mut <dyn AnyDeserializer<'_>>::erase(value)).map_err(CodecError::new)
        }
    }

    #[test]
    fn a_codec_of_ones_own_writes_and_reads() {
        let codecs = Codecs::of(Shouting);
        let payload = codecs.encode(&placed()).unwrap();
        assert_eq!(&payload.as_bytes()[..], b"{\"ORDER\":7,\"NOTE\":\"AS A GIFT\"}");
        assert_eq!(codecs.decode::<Placed>(&payload).unwrap(), placed());
        assert_eq!(Codecs::default().and(Shouting).decode::<Placed>(&payload).unwrap(), placed());
    }
}
