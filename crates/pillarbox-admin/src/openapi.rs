//! The document of the API, in OpenAPI 3.1. Tests hold it against the routes and the answers.

use axum::{Json, extract::OriginalUri, response::IntoResponse};
use serde_json::{Value, json};

use crate::problem::Problem;

/// The document as it is kept.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

/// With the place at which the router is nested.
pub(crate) async fn document(OriginalUri(uri): OriginalUri) -> Result<axum::response::Response, Problem> {
    let broken = |_| Problem::unavailable("the document can't be read");
    let mut document = serde_json::from_str::<Value>(DOCUMENT).map_err(broken)?;
    let place = uri.path().strip_suffix("/openapi.json").unwrap_or_default();
    document["servers"] = json!([{ "url": if place.is_empty() { "/" } else { place } }]);
    Ok(Json(document).into_response())
}
