//! The producer, which keeps the connections and makes them again by itself.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use pillarbox_core::port::SinkError;
use rdkafka::{
    ClientConfig, ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::{BaseProducer, Producer as _, ProducerContext, ThreadedProducer},
};
use tokio::sync::oneshot;

use crate::error;

/// A producer that is made when it is needed, and again after an error that ends it.
pub(crate) struct Connection {
    config: ClientConfig,
    producer: Mutex<Option<Arc<Producer>>>,
}

impl Connection {
    pub(crate) fn new(config: ClientConfig) -> Self {
        Self { config, producer: Mutex::default() }
    }

    /// The producer that there is, or a new one. It connects in the background.
    pub(crate) fn producer(&self) -> Result<Arc<Producer>, SinkError> {
        let mut kept = self.kept();
        if let Some(ended) = kept.take_if(|producer| producer.client().fatal_error().is_some()) {
            let error = ended.client().fatal_error().map(|(_, words)| words);
            tracing::warn!(error, "the Kafka producer has given up: a new one takes its place");
        }
        if let Some(producer) = &*kept {
            return Ok(Arc::clone(producer));
        }
        let producer: KafkaResult<ThreadedProducer<Context>> = self.config.create_with_context(Context::default());
        let producer = producer.map_err(|error| error::of_creation(&error))?;
        let producer = Arc::new(Producer(Some(producer)));
        *kept = Some(Arc::clone(&producer));
        Ok(producer)
    }

    /// Forgets this producer. Who uses it still may end in peace.
    pub(crate) fn lost(&self, producer: &Arc<Producer>) {
        self.kept().take_if(|kept| Arc::ptr_eq(kept, producer));
    }

    /// Forgets the producer, and hands it over.
    pub(crate) fn close(&self) -> Option<Arc<Producer>> {
        self.kept().take()
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<Producer>>> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a producer can be made of these settings: files are read, and logins are seen to be whole. It knows no brokers,
/// and asks nobody.
pub(crate) fn try_out(mut config: ClientConfig) -> Result<(), SinkError> {
    config.remove("bootstrap.servers");
    let producer: KafkaResult<BaseProducer> = config.create();
    producer.map(drop).map_err(|error| error::of_trial(&error))
}

/// A producer whose end keeps nobody waiting.
pub(crate) struct Producer(Option<ThreadedProducer<Context>>);

impl Producer {
    /// Why it has given up, or what was heard last from the brokers, if it was bad.
    pub(crate) fn heard(&self) -> Option<String> {
        if let Some((_, words)) = self.client().fatal_error() {
            return Some(words);
        }
        self.client().context().heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Deref for Producer {
    type Target = ThreadedProducer<Context>;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Its end waits for its threads: too long for a task of a runtime.
        let producer = self.0.take();
        let _ = thread::Builder::new().name("kafka end".into()).spawn(move || drop(producer));
    }
}

/// Answers of the brokers, and what else they say.
#[derive(Default)]
pub(crate) struct Context {
    heard: Mutex<Option<String>>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, words: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(facility, "librdkafka: {words}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(facility, "librdkafka: {words}");
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, "librdkafka: {reason}");
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        // That all are down follows on what tells why.
        if heard.is_none() || error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *heard = Some(reason.to_owned());
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<oneshot::Sender<Result<(), KafkaError>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, answer: Self::DeliveryOpaque) {
        let result = match result {
            Ok(_) => {
                self.heard.lock().unwrap_or_else(PoisonError::into_inner).take();
                Ok(())
            }
            Err((error, _)) => Err(error.clone()),
        };
        // Who asked may have gone.
        let _ = answer.send(result);
    }
}
