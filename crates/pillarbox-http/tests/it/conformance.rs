//! Web hooks pass the exam.

use std::{collections::BTreeMap, sync::Arc};

use percent_encoding::percent_decode_str;
use pillarbox_http::{HttpSink, Options};
use pillarbox_testkit::{
    servers::Proxy,
    sinks::{ANSWER_WITHIN, Place, Received},
};

use crate::receiver::{Arrived, LARGEST, Receiver};

struct Http {
    receiver: Receiver,
    proxy: Proxy,
}

impl Place for Http {
    type Sink = HttpSink;

    async fn fresh() -> Self {
        let receiver = Receiver::start();
        let proxy = Proxy::to(receiver.addr()).expect("a proxy");
        Self { receiver, proxy }
    }

    fn sink(&self) -> HttpSink {
        self.options().largest(100_000).open().expect("a sink")
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn topic(&self) -> Arc<str> {
        "orders/placed".into()
    }

    fn refused(&self) -> Arc<str> {
        "status/422/no-such-order".into()
    }

    async fn failing() -> Result<Self, &'static str> {
        let place = Self::fresh().await;
        place.receiver.fail(true);
        Ok(place)
    }

    async fn relent(&self) {
        self.receiver.fail(false);
    }

    fn unlimited(&self) -> Result<(HttpSink, usize), &'static str> {
        Ok((self.options().open().expect("a sink"), LARGEST + 1))
    }

    async fn received(&self) -> Vec<Received> {
        self.receiver.arrived().into_iter().filter(|arrived| arrived.path == "/orders/placed").map(received).collect()
    }
}

impl Http {
    fn options(&self) -> Options {
        Options::new(format!("http://{}/", self.proxy.addr())).answer_within(ANSWER_WITHIN)
    }
}

fn received(arrived: Arrived) -> Received {
    let mut attributes = BTreeMap::new();
    let mut headers = BTreeMap::new();
    for (name, value) in &arrived.headers {
        let value = percent_decode_str(value.to_str().unwrap()).decode_utf8().unwrap().into_owned();
        match name.as_str().strip_prefix("ce-") {
            Some(name) => attributes.insert(name.to_owned(), value),
            None => headers.insert(name.to_string(), value),
        };
    }
    Received {
        id: headers["idempotency-key"].clone(),
        key: attributes.get("partitionkey").cloned(),
        content_type: headers.get("content-type").cloned(),
        attributes,
        headers,
        payload: arrived.body,
    }
}

pillarbox_testkit::sinks!(Http);
