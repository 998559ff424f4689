//! A request, read: who asks, what for, and with which words.

use std::{collections::BTreeMap, fmt::Display, str::FromStr, sync::Arc};

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{FromRequest, FromRequestParts as _, RawPathParams},
    http::{Method, Request, header},
};
use pillarbox_core::{domain::limit, port::Actor};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{
    access::{Identity, Role},
    admin::Desk,
    problem::Problem,
    redact::Eyes,
};

/// Under which name somebody acts with a token that others have too.
pub(crate) const AS: &str = "x-pillarbox-as";

/// A reason is this long at the most.
const LONGEST_REASON: usize = 1_000;

/// A new payload in JSON, with everything escaped that needs it.
const PAYLOAD_BODY: usize = 3 * limit::PAYLOAD;

pub(crate) struct Call {
    pub(crate) desk: Arc<Desk>,
    pub(crate) identity: Identity,
    pub(crate) params: Params,
    id: String,
    on_behalf: Option<String>,
    body: Bytes,
}

impl Call {
    /// The id in the path.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn eyes(&self) -> Eyes<'_> {
        self.desk.redaction.eyes(&self.identity)
    }

    /// Who acts: only operators do.
    pub(crate) fn actor(&self, because: Option<String>) -> Result<Actor, Problem> {
        may_act(&self.identity)?;
        let who = match &self.on_behalf {
            Some(name) => format!("{} ({name})", self.identity.name),
            None => self.identity.name.clone(),
        };
        Ok(Actor { who, why: because })
    }

    /// Who acts, by a request that may say why in its body or its query, and nothing else.
    pub(crate) fn plain_actor(&self) -> Result<Actor, Problem> {
        // First, so that a viewer learns nothing else.
        self.actor(None)?;
        self.params.only(&["because"])?;
        let fields = self.fields(&["because"])?;
        let because = fields.because()?;
        self.actor(because.or(self.params.because()?))
    }

    /// How many one request for many takes: as many as are asked for, and as may be.
    pub(crate) fn bulk_limit(&self, fields: &Fields<'_>) -> Result<u64, Problem> {
        let (most, allowed) = (self.desk.limits.bulk.max(1), "a number, 1 or more");
        match fields.parsed::<u64>("limit", allowed)? {
            Some(0) => Err(Problem::bad_parameter("limit", "it is 0", allowed)),
            limit => Ok(limit.unwrap_or(most).min(most)),
        }
    }

    pub(crate) fn fields(&self, allowed: &'static [&'static str]) -> Result<Fields<'_>, Problem> {
        Fields::read(&self.body, allowed)
    }
}

impl FromRequest<Arc<Desk>> for Call {
    type Rejection = Problem;

    async fn from_request(request: Request<Body>, desk: &Arc<Desk>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let identity = parts.extensions.remove::<Identity>().ok_or_else(Problem::unauthorized)?;
        let path = RawPathParams::from_request_parts(&mut parts, desk).await;
        let path = path.map_err(|_| Problem::not_found("thing of this id:", "it is no text"))?;
        let id = path.iter().next().map(|(_, id)| id.to_owned()).unwrap_or_default();
        let params = Params::read(parts.uri.query().unwrap_or_default())?;
        let acts = parts.method != Method::GET && parts.method != Method::HEAD;
        let body = if acts {
            // Before the body is read, which may take as long as a request may: nobody keeps others from acting.
            may_act(&identity)?;
            let limit = if parts.uri.path().ends_with("/payload") { PAYLOAD_BODY } else { desk.limits.body };
            to_bytes(body, limit).await.map_err(|error| refused(&error, limit))?
        } else {
            Bytes::new()
        };
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        // A form of a browser has another content type, and it has one.
        if acts && (content_type.is_some() || !body.is_empty()) && !content_type.is_some_and(is_json) {
            return Err(Problem::not_json());
        }
        let on_behalf = match parts.headers.get(AS) {
            None => None,
            Some(name) => {
                let name = name.to_str().ok().map(str::trim).filter(|name| (1..=100).contains(&name.len()));
                let allowed = "1 to 100 visible characters";
                Some(name.ok_or_else(|| Problem::bad_parameter(AS, "the header can't be read", allowed))?.to_owned())
            }
        };
        Ok(Self { desk: Arc::clone(desk), identity, params, id, on_behalf, body })
    }
}

fn may_act(identity: &Identity) -> Result<(), Problem> {
    match identity.role {
        Role::Operator => Ok(()),
        Role::Viewer => Err(Problem::forbidden(format!("{:?} is a viewer, and only operators act", identity.name))),
    }
}

fn refused(error: &axum::Error, limit: usize) -> Problem {
    // What has no end before the limit fails in this way; what has no end at all, in others.
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    if text.contains("length limit") {
        Problem::too_large(limit)
    } else {
        Problem::bad_body("the body did not come through")
    }
}

fn is_json(content_type: &axum::http::HeaderValue) -> bool {
    let essence = content_type.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// The parameters of a query, each once.
#[derive(Debug, Default)]
pub(crate) struct Params(BTreeMap<String, String>);

impl Params {
    fn read(query: &str) -> Result<Self, Problem> {
        let mut params = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let name = name.into_owned();
            if params.contains_key(&name) {
                return Err(Problem::bad_parameter(
                    &name.chars().take(80).collect::<String>(),
                    "it stands twice",
                    "once",
                ));
            }
            params.insert(name, value.into_owned());
        }
        Ok(Self(params))
    }

    /// Refuses what is none of these.
    pub(crate) fn only(&self, allowed: &[&str]) -> Result<(), Problem> {
        match self.0.keys().find(|name| !allowed.contains(&name.as_str())) {
            Some(unknown) => Err(Problem::unknown_parameter(unknown, allowed)),
            None => Ok(()),
        }
    }

    /// A text as every database takes it.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<String>, Problem> {
        self.0.get(name).map(|value| checked(name, value.clone(), limit::KEY)).transpose()
    }

    pub(crate) fn parsed<T: FromStr<Err: Display>>(
        &self,
        name: &'static str,
        allowed: &str,
    ) -> Result<Option<T>, Problem> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let parsed = value.parse().map_err(|error: T::Err| Problem::bad_parameter(name, error.to_string(), allowed));
        parsed.map(Some)
    }

    pub(crate) fn flag(&self, name: &'static str, default: bool) -> Result<bool, Problem> {
        Ok(self.parsed(name, "true or false")?.unwrap_or(default))
    }

    /// How many items a page shall have: as many as are asked for, and as may be. The next page goes on.
    pub(crate) fn limit(&self, desk: &Desk) -> Result<u32, Problem> {
        let (largest, allowed) = (desk.limits.largest_page.max(1), "a number, 1 or more");
        match self.parsed::<u32>("limit", allowed)? {
            Some(0) => Err(Problem::bad_parameter("limit", "it is 0", allowed)),
            limit => Ok(limit.unwrap_or(desk.limits.page).clamp(1, largest)),
        }
    }

    pub(crate) fn because(&self) -> Result<Option<String>, Problem> {
        self.0.get("because").map(|value| checked("because", value.clone(), LONGEST_REASON)).transpose()
    }
}

/// The members of a JSON object, each of them known.
#[derive(Debug)]
pub(crate) struct Fields<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    /// Nothing at all stands for an empty object.
    fn read(body: &'a [u8], allowed: &'static [&'static str]) -> Result<Self, Problem> {
        if body.is_empty() {
            return Ok(Self(BTreeMap::new()));
        }
        let fields = serde_json::from_slice::<BTreeMap<String, &RawValue>>(body);
        let fields = fields.map_err(|error| {
            let told: String = error.to_string().chars().take(200).collect();
            Problem::bad_body(format!("the body is one JSON object: {told}"))
        })?;
        match fields.keys().find(|name| !allowed.contains(&name.as_str())) {
            Some(unknown) => Err(Problem::unknown_parameter(unknown, allowed)),
            None => Ok(Self(fields)),
        }
    }

    /// An object within the object.
    pub(crate) fn object(&self, name: &'static str, allowed: &'static [&'static str]) -> Result<Self, Problem> {
        self.raw(name).map_or(Ok(Self(BTreeMap::new())), |raw| Self::read(raw.get().as_bytes(), allowed))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A member as it stands; null is as if it were not there.
    pub(crate) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied().filter(|raw| raw.get() != "null")
    }

    /// A member as it stands, null among what it may be.
    pub(crate) fn given(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied()
    }

    pub(crate) fn parsed<T: DeserializeOwned>(&self, name: &'static str, allowed: &str) -> Result<Option<T>, Problem> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|error| {
            let told: String = error.to_string().chars().take(200).collect();
            Problem::bad_parameter(name, told, allowed)
        })
    }

    pub(crate) fn text(&self, name: &'static str) -> Result<Option<String>, Problem> {
        let text = self.parsed::<String>(name, "a text")?;
        text.map(|text| checked(name, text, limit::KEY)).transpose()
    }

    pub(crate) fn because(&self) -> Result<Option<String>, Problem> {
        let text = self.parsed::<String>("because", "a text")?;
        text.map(|text| checked("because", text, LONGEST_REASON)).transpose()
    }
}

fn checked(name: &'static str, text: String, longest: usize) -> Result<String, Problem> {
    let allowed = format!("a text of 1 to {longest} bytes, without NUL");
    // PostgreSQL keeps no NUL in text.
    if text.is_empty() || text.len() > longest || text.contains('\0') {
        let why = format!("it is empty, too long ({} bytes), or has a NUL in it", text.len());
        return Err(Problem::bad_parameter(name, why, &allowed));
    }
    Ok(text)
}
