//! `derive(OutboxEvent)`: what is generated.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::{Data, DeriveInput, Error, Expr, LitStr, Path, Result, parse_quote, spanned::Spanned as _};

use crate::{
    attribute::{Said, VersionIn},
    place::Scope,
};

pub(crate) fn derive(input: &DeriveInput) -> Result<TokenStream> {
    if !input.generics.params.is_empty() {
        let message = "an event can't be generic: its type is a name in a table, and one for every type that could be put \
                       in; write a type of its own for each event";
        return Err(Error::new_spanned(&input.generics, message));
    }
    let said = Said::of(&input.attrs)?;
    let kinds = kinds(input, &said)?;
    let root = said.root.clone().unwrap_or_else(|| parse_quote!(::pillarbox));
    let private = quote!(#root::__private);
    let name = &input.ident;
    let version = said.version.map_or(1, |(version, _)| version);
    let in_type = said.version_in.is_some_and(|(place, _)| place == VersionIn::Type);

    let routes = kinds.iter().flat_map(|kind| {
        // Where the version is part of the type, former versions have routes of their own.
        let versions = if in_type { 1..=version } else { version..=version };
        let private = &private;
        versions.map(move |version| kind.route(private, version, in_type))
    });
    let arms = kinds.iter().map(|kind| kind.describe(&private, version, in_type)).collect::<Result<Vec<_>>>()?;
    let encode = encode(&said, &private);
    let decode = decode(&said, &kinds, &private, version, in_type);
    Ok(quote! {
        #[automatically_derived]
        impl #private::OutboxEvent for #name {
            fn routes() -> ::std::vec::Vec<#private::Route> {
                ::std::vec![#(#routes),*]
            }

            #[allow(unused_variables, reason = "every field is bound, and few are named")]
            fn describe(&self) -> #private::EventBuilder {
                use #private::text::{OfDisplay as _, OfOption as _};
                match self {
                    #(#arms)*
                }
            }

            fn encode(&self, codecs: &#private::Codecs) -> ::std::result::Result<#private::Payload, #private::CodecError> {
                #encode
            }

            fn decode(
                event: &#private::Event,
                codecs: &#private::Codecs,
            ) -> ::std::result::Result<Self, #private::CodecError> {
                #decode
            }
        }
    })
}

/// A kind of event: the struct, or a variant of the enum.
struct Kind<'a> {
    scope: Scope<'a>,
    /// What comes before the fields in a pattern.
    constructor: TokenStream,
    event_type: String,
    aggregate: Option<LitStr>,
    aggregate_id: Option<Expr>,
    key: Option<Expr>,
    tenant: Option<Expr>,
    context: Vec<(String, Expr)>,
}

fn kinds<'a>(input: &'a DeriveInput, said: &Said) -> Result<Vec<Kind<'a>>> {
    match &input.data {
        Data::Struct(data) => {
            let scope = Scope { name: input.ident.to_string(), fields: &data.fields };
            Ok(vec![Kind::new(scope, quote!(Self), &input.ident.to_string(), &Said::default(), said)])
        }
        Data::Enum(data) => {
            if let Some(name) = &said.event_type {
                let message = "every variant of an enum is an event type of its own: set `type` at the variants";
                return Err(Error::new(name.span(), message));
            }
            if data.variants.is_empty() {
                return Err(Error::new_spanned(&input.ident, "an enum without variants has no events"));
            }
            let mut kinds: Vec<Kind<'a>> = Vec::new();
            for variant in &data.variants {
                let own = Said::of(&variant.attrs)?;
                refuse_at_variant(&own)?;
                let scope = Scope { name: format!("{}::{}", input.ident, variant.ident), fields: &variant.fields };
                let name = &variant.ident;
                let kind = Kind::new(scope, quote!(Self::#name), &name.to_string(), &own, said);
                if kinds.iter().any(|known| known.is_same(&kind)) {
                    let message =
                        format!("two variants are the event type {:?}: name one of them with `type`", kind.event_type);
                    return Err(Error::new(variant.span(), message));
                }
                kinds.push(kind);
            }
            Ok(kinds)
        }
        Data::Union(data) => {
            Err(Error::new(data.union_token.span(), "a union can't be an event: make it a struct or an enum"))
        }
    }
}

fn refuse_at_variant(said: &Said) -> Result<()> {
    let spans = [
        ("version", said.version.map(|(_, span)| span)),
        ("version_in", said.version_in.map(|(_, span)| span)),
        ("upcast", said.upcast.as_ref().map(syn::spanned::Spanned::span)),
        ("codec", said.codec.as_ref().map(syn::spanned::Spanned::span)),
        ("protobuf", said.protobuf),
        ("crate", said.root.as_ref().map(syn::spanned::Spanned::span)),
    ];
    match spans.into_iter().find_map(|(name, span)| Some((name, span?))) {
        Some((name, span)) => Err(Error::new(span, format!("`{name}` is for the whole enum: set it there"))),
        None => Ok(()),
    }
}

impl<'a> Kind<'a> {
    /// `own` comes before `of_all`.
    fn new(scope: Scope<'a>, constructor: TokenStream, name: &str, own: &Said, of_all: &Said) -> Self {
        let event_type = own.event_type.as_ref().or(of_all.event_type.as_ref());
        let mut context: Vec<(String, Expr)> = Vec::new();
        for (name, place) in own.context.iter().chain(&of_all.context) {
            let name = name.to_string();
            if context.iter().all(|(known, _)| *known != name) {
                context.push((name, place.clone()));
            }
        }
        let either = |own: &Option<Expr>, all: &Option<Expr>| own.clone().or_else(|| all.clone());
        Self {
            scope,
            constructor,
            event_type: event_type.map_or_else(|| name.to_owned(), LitStr::value),
            aggregate: own.aggregate.clone().or_else(|| of_all.aggregate.clone()),
            aggregate_id: either(&own.aggregate_id, &of_all.aggregate_id),
            key: either(&own.key, &of_all.key),
            tenant: either(&own.tenant, &of_all.tenant),
            context,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let aggregate = |kind: &Self| kind.aggregate.as_ref().map(LitStr::value);
        self.event_type == other.event_type && aggregate(self) == aggregate(other)
    }

    fn type_name(&self, version: u32, in_type: bool) -> String {
        if in_type && version > 1 { format!("{}.v{version}", self.event_type) } else { self.event_type.clone() }
    }

    fn route(&self, private: &TokenStream, version: u32, in_type: bool) -> TokenStream {
        let event_type = self.type_name(version, in_type);
        if let Some(aggregate) = &self.aggregate {
            return quote!(#private::Route::new(#aggregate, #event_type));
        }
        quote!(<#private::Route as ::std::convert::From<&str>>::from(#event_type))
    }

    /// An arm of the match in `describe`.
    fn describe(&self, private: &TokenStream, version: u32, in_type: bool) -> Result<TokenStream> {
        let Self { constructor, .. } = self;
        let pattern = self.scope.pattern();
        let event_type = self.type_name(version, in_type);
        let aggregate = self.aggregate.as_ref().map(|name| quote!(.aggregate_type(#name)));
        let header = (version > 1 && !in_type).then(|| {
            let version = version.to_string();
            quote!(.header(#private::SCHEMA_VERSION, #version))
        });
        let mut values = Vec::new();
        for (place, method) in [(&self.aggregate_id, "aggregate_id"), (&self.key, "key"), (&self.tenant, "tenant")] {
            let Some(place) = place else { continue };
            let (text, method) = (self.text(place, private)?, format_ident!("{method}"));
            values.push(quote! {
                if let ::std::option::Option::Some(text) = #text {
                    builder = builder.#method(text);
                }
            });
        }
        for (name, place) in &self.context {
            let text = self.text(place, private)?;
            values.push(quote! {
                if let ::std::option::Option::Some(text) = #text {
                    builder = builder.context(#name, text);
                }
            });
        }
        Ok(quote! {
            #constructor #pattern => {
                #[allow(unused_mut, reason = "not every event has such values")]
                let mut builder = #private::Event::builder(#event_type) #aggregate #header;
                #(#values)*
                builder
            }
        })
    }

    fn text(&self, place: &Expr, private: &TokenStream) -> Result<TokenStream> {
        let value = self.scope.value(place)?;
        Ok(quote_spanned!(place.span()=> (&#private::text::Of(&#value)).text()))
    }
}

fn encode(said: &Said, private: &TokenStream) -> TokenStream {
    match (said.protobuf, &said.codec) {
        (Some(span), _) => quote_spanned!(span=> ::std::result::Result::Ok(#private::protobuf::encode(self))),
        (None, Some(codec)) => quote!(#private::Codecs::of(#codec).encode(self)),
        (None, None) => quote!(codecs.encode(self)),
    }
}

fn decode(said: &Said, kinds: &[Kind<'_>], private: &TokenStream, version: u32, in_type: bool) -> TokenStream {
    let read = match (said.protobuf, &said.codec) {
        (Some(span), _) => quote_spanned!(span=> #private::protobuf::decode(event.payload())),
        (None, Some(codec)) => quote!(codecs.clone().and(#codec).decode(event.payload())),
        (None, None) => quote!(codecs.decode(event.payload())),
    };
    let found = if in_type {
        let arms = kinds.iter().flat_map(|kind| {
            (1..=version).map(|version| {
                let name = kind.type_name(version, true);
                quote!(#name => #version,)
            })
        });
        quote! {
            match event.event_type().as_str() {
                #(#arms)*
                _ => #version,
            }
        }
    } else {
        quote!(event.schema_version()?)
    };
    let former = said.upcast.as_ref().map_or_else(
        || quote!(::std::result::Result::Err(#private::CodecError::former(version, #version))),
        |upcast| upcasted(upcast, private),
    );
    quote! {
        let version: u32 = #found;
        if version == #version {
            return #read;
        }
        if version > #version {
            return ::std::result::Result::Err(#private::CodecError::newer(version, #version));
        }
        #former
    }
}

fn upcasted(upcast: &Path, private: &TokenStream) -> TokenStream {
    quote_spanned! {upcast.span()=>
        #upcast(#private::Former::new(event, version, codecs)).map_err(#private::CodecError::new)
    }
}
