//! Where a topic is: a path below the sink's URL.

use std::sync::{PoisonError, RwLock};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pillarbox_core::port::SinkError;
use reqwest::Url;

/// All but what a segment of a path may have (RFC 3986, `pchar`).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// The URL of each topic, of which a few are kept: most outboxes have few, and making a URL costs more than looking it up.
pub(crate) struct Targets {
    base: Url,
    made: RwLock<Vec<(String, Url)>>,
}

/// So many are kept. Who has more topics than that makes the others each time.
const KEPT: usize = 32;

impl Targets {
    /// Topics are paths below this.
    pub(crate) fn below(base: Url) -> Self {
        Self { base, made: RwLock::default() }
    }

    /// Where messages of a topic go.
    pub(crate) fn of(&self, topic: &str) -> Result<Url, SinkError> {
        let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, url)) = made.iter().find(|(of, _)| of == topic) {
            return Ok(url.clone());
        }
        drop(made);
        let url = self.make(topic)?;
        let mut made = self.made.write().unwrap_or_else(PoisonError::into_inner);
        if made.len() < KEPT && made.iter().all(|(of, _)| of != topic) {
            made.push((topic.to_owned(), url.clone()));
        }
        Ok(url)
    }

    fn make(&self, topic: &str) -> Result<Url, SinkError> {
        let mut url = self.base.clone();
        let topic = topic.strip_prefix('/').unwrap_or(topic);
        if topic.is_empty() {
            return Ok(url);
        }
        let mut path = self.base.path().trim_end_matches('/').to_owned();
        for segment in topic.split('/') {
            if matches!(segment, "." | "..") {
                return Err(SinkError::unfit(format_args!("the topic {topic:?} leads out of the web hook's URL")));
            }
            path.push('/');
            path.extend(utf8_percent_encode(segment, SEGMENT));
        }
        url.set_path(&path);
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind;

    use super::*;

    fn target_of(base: &str, topic: &str) -> Result<String, SinkErrorKind> {
        let base = Url::parse(base).expect("a URL");
        Targets::below(base).of(topic).map(String::from).map_err(|error| error.kind())
    }

    #[test]
    fn topics_are_paths_below_the_url() {
        for (base, topic, expected) in [
            ("https://shop.example", "orders", "https://shop.example/orders"),
            ("https://shop.example/hooks", "orders/placed", "https://shop.example/hooks/orders/placed"),
            ("https://shop.example/hooks/", "/orders", "https://shop.example/hooks/orders"),
            ("https://shop.example/hooks", "", "https://shop.example/hooks"),
            ("https://shop.example/hooks?token=1", "orders", "https://shop.example/hooks/orders?token=1"),
            ("https://shop.example/hooks", "a b?c#d%2fe\\f", "https://shop.example/hooks/a%20b%3Fc%23d%252fe%5Cf"),
            ("https://shop.example/hooks", "grün\n", "https://shop.example/hooks/gr%C3%BCn%0A"),
            ("https://shop.example/hooks", "//evil.example/x", "https://shop.example/hooks//evil.example/x"),
            ("https://shop.example", "https://evil.example", "https://shop.example/https://evil.example"),
            ("https://shop.example", "@evil.example", "https://shop.example/@evil.example"),
            ("https://shop.example/hooks", "%2e%2e/x", "https://shop.example/hooks/%252e%252e/x"),
            ("https://shop.example/hooks", "...", "https://shop.example/hooks/..."),
        ] {
            assert_eq!(target_of(base, topic).as_deref(), Ok(expected), "{base} {topic}");
        }
    }

    #[test]
    fn topics_that_lead_out_of_the_url_are_rejected() {
        for topic in ["..", "../admin", "a/../../admin", "/../admin", ".", "a/./b"] {
            assert_eq!(target_of("https://shop.example/hooks", topic), Err(SinkErrorKind::Rejected), "{topic}");
        }
    }

    #[test]
    fn a_topic_leads_to_the_same_place_every_time_however_many_there_are() {
        let targets = Targets::below(Url::parse("https://shop.example/hooks").expect("a URL"));
        for _ in 0..2 {
            for n in 0..KEPT * 2 {
                let url = targets.of(&format!("topic/{n}")).expect("a target");
                assert_eq!(url.as_str(), format!("https://shop.example/hooks/topic/{n}"));
            }
        }
        assert_eq!(targets.made.read().expect("a lock").len(), KEPT);
    }
}
