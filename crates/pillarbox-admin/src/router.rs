//! Every route, and what stands before them all.

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post, put},
};

use crate::{
    access::Way,
    actions,
    admin::Desk,
    bulk, dead, events, letters, openapi, page,
    problem::{PROBLEM, Problem},
};

/// Declares the routes, once for the router and once for the test that compares them with the document.
macro_rules! routes {
    ($($method:ident $path:literal => $handler:path,)+) => {
        /// Every route with its method.
        #[cfg_attr(not(test), expect(dead_code, reason = "compared with the document by a test"))]
        pub(crate) const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path)),+];

        fn routes() -> Router<Arc<Desk>> {
            Router::new()$(.route($path, $method($handler)))+
        }
    };
}

routes! {
    get "/events" => events::list,
    get "/events/count" => events::count,
    post "/events/replay" => events::replay_many,
    post "/events/discard" => events::discard_many,
    get "/events/{id}" => events::show,
    delete "/events/{id}" => events::discard,
    post "/events/{id}/replay" => events::replay,
    post "/events/{id}/skip" => events::skip,
    put "/events/{id}/payload" => events::edit,
    get "/dead" => dead::list,
    get "/dead/count" => dead::count,
    get "/dlq" => letters::list,
    get "/dlq/count" => letters::count,
    post "/dlq/replay" => bulk::replay,
    post "/dlq/discard" => bulk::discard,
    get "/dlq/{id}" => letters::show,
    delete "/dlq/{id}" => letters::discard,
    post "/dlq/{id}/replay" => letters::replay,
    put "/dlq/{id}/payload" => letters::edit,
    get "/actions" => actions::list,
    get "/stats" => events::stats,
    get "/fleet" => events::fleet,
    get "/openapi.json" => openapi::document,
    get "/docs" => page::html,
    get "/docs.js" => page::script,
    get "/docs.css" => page::style,
}

pub(crate) fn router(desk: Arc<Desk>) -> Router {
    let none = || async { Problem::of(StatusCode::NOT_FOUND) };
    routes()
        .fallback(none)
        .method_not_allowed_fallback(|| async { Problem::of(StatusCode::METHOD_NOT_ALLOWED) })
        .layer(middleware::from_fn_with_state(Arc::clone(&desk), guard))
        .with_state(desk)
}

/// The head of every answer. No header opens it to pages of other origins.
const HEAD: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

async fn guard(State(desk): State<Arc<Desk>>, request: Request<Body>, next: Next) -> Response {
    let answer = admit(&desk, request, next).await.unwrap_or_else(IntoResponse::into_response);
    let mut answer = as_problem(answer);
    for (name, value) in HEAD {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

async fn admit(desk: &Desk, request: Request<Body>, next: Next) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    // A page without data and the document of the API hold nothing to protect, and a browser that opens them has no
    // token to send.
    let public = matches!(desk.access.0, Way::Tokens(_))
        && parts.method == Method::GET
        && page::PUBLIC.iter().any(|path| parts.uri.path() == *path);
    let caller = if public {
        "page".to_owned()
    } else {
        let identity = desk.access.identify(&parts)?;
        let name = identity.name.clone();
        parts.extensions.insert(identity);
        name
    };
    desk.buckets.take(&caller, &desk.limits, Instant::now())?;
    if desk.access.is_ambient() && !parts.method.is_safe() && is_of_another_page(&parts.headers) {
        return Err(Problem::forbidden("a page of another origin may not act here"));
    }
    let _place = desk.places.try_acquire().map_err(|_| Problem::busy())?;
    let limit = desk.limits.time;
    let answer = tokio::time::timeout(limit, next.run(Request::from_parts(parts, body))).await;
    answer.map_err(|_| Problem::too_slow(limit))
}

/// Whether a browser says that another page sent this. Programs say nothing of the kind.
fn is_of_another_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site") {
        return !matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text("origin") else { return false };
    let of = origin.split_once("://").map(|(_, authority)| authority);
    of.is_none() || of != text("host")
}

/// Whoever gives an error, it is told as a problem.
fn as_problem(answer: Response) -> Response {
    let status = answer.status();
    let is_problem = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM);
    if is_problem || !(status.is_client_error() || status.is_server_error()) {
        return answer;
    }
    let mut problem = Problem::of(status).into_response();
    if let Some(allow) = answer.headers().get(header::ALLOW) {
        problem.headers_mut().insert(header::ALLOW, allow.clone());
    }
    problem
}
