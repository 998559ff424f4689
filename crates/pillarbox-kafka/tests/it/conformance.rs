//! Kafka passes the exam.

use std::{collections::BTreeMap, sync::Arc};

use pillarbox_kafka::{KafkaSink, Options};
use pillarbox_testkit::{
    servers::Proxy,
    sinks::{ANSWER_WITHIN, Place, Received},
};
use rdkafka::{
    Message,
    message::{Headers, OwnedMessage},
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use crate::cluster::{Cluster, Detour};

const REFUSED: &str = "somebody-elses";

pub(crate) struct Kafka {
    pub(crate) cluster: Cluster,
    proxy: Proxy,
}

impl Place for Kafka {
    type Sink = KafkaSink;

    async fn fresh() -> Self {
        let cluster = Cluster::start(1, 3);
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        cluster.with(move |mock| mock.topic_error(REFUSED, error).unwrap());
        let detour = Detour::to(cluster.brokers.parse().expect("one broker"));
        let proxy = Proxy::to(detour.addr()).expect("a proxy");
        detour.lead_to(proxy.port());
        Self { cluster, proxy }
    }

    fn sink(&self) -> KafkaSink {
        Options::new(self.proxy.addr().to_string()).answer_within(ANSWER_WITHIN).open().expect("a sink")
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn topic(&self) -> Arc<str> {
        Arc::clone(&self.cluster.topic)
    }

    fn refused(&self) -> Arc<str> {
        REFUSED.into()
    }

    async fn failing() -> Result<Self, &'static str> {
        let place = Self::fresh().await;
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE;
        place.cluster.answer_with(RDKafkaApiKey::Produce, &[error; 20]);
        Ok(place)
    }

    async fn relent(&self) {
        self.cluster.with(|mock| mock.clear_request_errors(RDKafkaApiKey::Produce));
    }

    fn unlimited(&self) -> Result<(KafkaSink, usize), &'static str> {
        Err("the mock takes everything; that it refuses what is too large is played in the module `faults`")
    }

    async fn received(&self) -> Vec<Received> {
        self.cluster.records().iter().map(received).collect()
    }
}

fn received(record: &OwnedMessage) -> Received {
    let mut attributes = BTreeMap::new();
    let mut headers = BTreeMap::new();
    for header in record.headers().unwrap().iter() {
        let value = String::from_utf8(header.value.unwrap().to_vec()).unwrap();
        match header.key.strip_prefix("ce_") {
            Some(name) => attributes.insert(name.to_owned(), value),
            None => headers.insert(header.key.to_owned(), value),
        };
    }
    Received {
        id: headers["event-id"].clone(),
        key: record.key().map(|key| String::from_utf8(key.to_vec()).unwrap()),
        content_type: headers.get("content-type").cloned(),
        attributes,
        headers,
        payload: record.payload().unwrap().to_vec().into(),
    }
}

pillarbox_testkit::sinks!(Kafka);
