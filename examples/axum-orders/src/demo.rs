//! A client of the service, which runs beside it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot};

use crate::{Failure, serve};

/// Starts the service, places orders over HTTP, waits until they are shipped, and stops the service.
pub(crate) async fn run(url: Option<String>) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let url = url.unwrap_or_else(|| format!("sqlite:{}", folder.path().join("orders.db").display()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let service = tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        serve(listener, &url, None, stopped).await
    });

    order_from(&address).await?;
    drop(stop);
    service.await??;
    println!("the service has stopped");
    Ok(())
}

async fn order_from(address: &str) -> Result<(), Failure> {
    let client = reqwest::Client::new();
    let post = |wish: Value| client.post(format!("{address}/orders")).json(&wish);

    let placed = post(json!({ "item": "tea", "quantity": 2 })).header("idempotency-key", "first").send().await?;
    println!("POST /orders: {}", placed.status());
    let order: Value = placed.error_for_status()?.json().await?;
    let again = post(json!({ "item": "tea", "quantity": 2 })).header("idempotency-key", "first").send().await?;
    println!("the same again: {}", again.status());
    let again: Value = again.json().await?;
    expect("a repeated request gets the first one's order", again["id"] == order["id"])?;

    let refused = post(json!({ "item": "tea", "quantity": 1000 })).send().await?;
    println!("a thousand: {}", refused.text().await?);

    let id = order["id"].as_str().ok_or("an order has an id")?;
    let begin = Instant::now();
    loop {
        let order: Value = client.get(format!("{address}/orders/{id}")).send().await?.json().await?;
        if order["status"] == "shipped" {
            println!("GET /orders/{id}: {order}");
            return Ok(());
        }
        expect("the order is shipped within 10 seconds", begin.elapsed() < Duration::from_secs(10))?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn expect(what: &str, is_so: bool) -> Result<(), Failure> {
    if is_so { Ok(()) } else { Err(format!("expected: {what}").into()) }
}
