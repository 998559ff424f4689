//! A message as Redis takes it: one `XADD`.

use pillarbox_core::port::{Message, SinkError};
use redis::Cmd;

use crate::Options;

/// The command that appends a message to its stream; an error if no stream can take it.
pub(crate) fn command(message: &Message, options: &Options) -> Result<Cmd, SinkError> {
    if message.topic.is_empty() {
        return Err(SinkError::unfit("the topic is empty: a stream needs a name"));
    }
    if message.payload.len() > options.largest {
        let (size, largest) = (message.payload.len(), options.largest);
        return Err(SinkError::unfit(format_args!("the payload has {size} bytes, and {largest} are the most")));
    }
    let mut command = with_room_for(message);
    command.arg("XADD").arg(&*message.topic);
    if let Some(entries) = options.max_len {
        command.arg("MAXLEN").arg(if options.exact_max_len { "=" } else { "~" }).arg(entries);
    }
    command.arg("*").arg("id").arg(message.id.to_string());
    if let Some(key) = &message.key {
        command.arg("key").arg(key.as_str());
    }
    command.arg("content-type").arg(&*message.content_type);
    let mut field = String::with_capacity(64);
    let mut named = |prefix: &str, name: &str, value: &str| {
        field.clear();
        field.push_str(prefix);
        field.push_str(name);
        command.arg(&field).arg(value);
    };
    message.attributes.iter().for_each(|(name, value)| named("ce_", name, value));
    message.headers.iter().for_each(|(name, value)| named("header_", name, value));
    command.arg("payload").arg(&message.payload[..]);
    Ok(command)
}

/// A command that grows no more: its words are copied once.
fn with_room_for(message: &Message) -> Cmd {
    let names = message.attributes.iter().map(|(name, value)| name.len() + value.len());
    let headers = message.headers.iter().map(|(name, value)| name.len() + value.len());
    let (count, bytes) = names.chain(headers).fold((0, 0), |(count, bytes), pair| (count + 1, bytes + pair + 8));
    // The rest has names of ours, an id, and a number.
    let of_key = message.key.as_ref().map_or(0, |key| key.as_str().len());
    let others = message.topic.len() + of_key + message.content_type.len() + message.payload.len() + 96;
    Cmd::with_capacity(2 * count + 16, bytes + others)
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{Event, domain::Key, port::SinkErrorKind};
    use redis::Arg;

    use super::*;

    fn message() -> Message {
        Message {
            topic: "orders".into(),
            key: Some(Key::from("order-7")),
            id: Event::builder("OrderPlaced").json(&()).build().expect("an event").id(),
            content_type: "application/json".into(),
            attributes: vec![("source".into(), "/orders".into())],
            // The name of a field of ours: it can't take its place.
            headers: vec![("payload".into(), "grün\r\n%".into())],
            payload: vec![0, 255].into(),
        }
    }

    fn words(command: &Cmd) -> Vec<Vec<u8>> {
        let args = command.args_iter().map(|arg| match arg {
            Arg::Simple(bytes) => bytes.to_vec(),
            _ => b"cursor".to_vec(),
        });
        args.collect()
    }

    #[test]
    fn a_message_becomes_fields() {
        let message = message();
        let id = message.id.to_string();
        let expected: Vec<&[u8]> = vec![
            b"XADD",
            b"orders",
            b"*",
            b"id",
            id.as_bytes(),
            b"key",
            b"order-7",
            b"content-type",
            b"application/json",
            b"ce_source",
            b"/orders",
            b"header_payload",
            "grün\r\n%".as_bytes(),
            b"payload",
            &[0, 255],
        ];
        assert_eq!(words(&command(&message, &Options::new("")).expect("a command")), expected);
    }

    #[test]
    fn streams_are_trimmed_about_or_exactly_if_told_so() {
        for (is_exact, sign) in [(false, b"~"), (true, b"=")] {
            let options = Options::new("").max_len(9).exact_max_len(is_exact);
            let words = words(&command(&message(), &options).expect("a command"));
            assert_eq!(words[2..6], [&b"MAXLEN"[..], sign, b"9", b"*"]);
        }
    }

    #[test]
    fn what_no_stream_can_take_is_refused_here() {
        let mut nowhere = message();
        nowhere.topic = "".into();
        let error = command(&nowhere, &Options::new("")).expect_err("no name");
        assert_eq!(error.kind(), SinkErrorKind::Rejected);
        assert!(command(&message(), &Options::new("").largest(2)).is_ok());
        let error = command(&message(), &Options::new("").largest(1)).expect_err("too large");
        assert_eq!(error.kind(), SinkErrorKind::Rejected);
        assert_eq!(error.to_string(), "the payload has 2 bytes, and 1 are the most");
    }
}
