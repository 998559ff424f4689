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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::router::ROUTES;

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let mut told = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            told.extend(methods.as_object().unwrap().keys().map(|method| (method.as_str(), path.as_str())));
        }
        assert_eq!(told, ROUTES.iter().copied().collect());
    }
}
