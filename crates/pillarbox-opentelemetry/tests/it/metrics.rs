//! What is counted through the facade comes to the collector.

use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point::Value};
use pillarbox_core::Delivery;
use tokio::sync::mpsc::unbounded_channel;

use crate::{
    collector::text,
    shop::{Shop, placed, write},
};

#[tokio::test]
async fn the_metrics_of_an_outbox_come_to_the_collector() {
    let shop = Shop::new();
    shop.telemetry.install_metrics().unwrap();
    let (told, mut delivered) = unbounded_channel();
    // Names of its own, because recorders are the process's and other tests may count as well.
    let builder = Shop::builder().metrics_prefix("shop").route("OrderPlaced", move |_: Delivery| {
        let _ = told.send(());
        std::future::ready(())
    });
    let outbox = builder.start().await.unwrap();
    for _ in 0..3 {
        write(&outbox, placed()).await;
        delivered.recv().await.unwrap();
    }
    shop.close(outbox).await;

    let metric = shop.collector.metric("shop_delivered_total");
    assert_eq!(metric.description, "events whose handler succeeded");
    let Some(Data::Sum(sum)) = metric.data else { panic!("{metric:?}") };
    assert!(sum.is_monotonic);
    assert_eq!(sum.data_points[0].value, Some(Value::AsInt(3)));

    let metric = shop.collector.metric("shop_handler_seconds");
    assert_eq!(metric.unit, "s");
    let Some(Data::Histogram(spread)) = metric.data else { panic!("{metric:?}") };
    assert_eq!(spread.data_points[0].count, 3);
    assert_eq!(spread.data_points[0].explicit_bounds.first(), Some(&0.0001));

    let metric = shop.collector.metric("shop_records");
    let Some(Data::Gauge(gauge)) = metric.data else { panic!("{metric:?}") };
    let mut statuses: Vec<_> = gauge.data_points.iter().filter_map(|point| text(&point.attributes, "status")).collect();
    statuses.sort();
    assert_eq!(statuses, ["DEAD", "DONE", "NEW", "RETRY"]);

    let second = shop.telemetry.install_metrics().unwrap_err().to_string();
    assert!(second.contains("Telemetry::recorder"), "{second}");
}
