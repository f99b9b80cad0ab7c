//! Handling of API requests, by path and verb.

mod patching;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use serde_json::{Value, json};

use crate::control_plane::Shared;
use crate::decode::{self, FieldValidation};
use crate::discovery;
use crate::list;
use crate::object;
use crate::protobuf;
use crate::refusal::{FieldError, Mistake, Refusal, about};
use crate::request::{self, Query, Target};
use crate::resource::{Behaviour, Resource, catalogue};
use crate::review;
use crate::selector::Selector;
use crate::service::{self, ApiResponse};
use crate::store::Key;
use crate::view::View;
use crate::watch::{Watch, Watched};
use crate::write::{Deleted, Deletion, Propagation, Transaction, Writing};

pub(crate) fn handle(shared: &Arc<Shared>, parts: &Parts, body: &[u8]) -> Result<ApiResponse, Refusal> {
    let path = parts.uri.path();
    let Some(target) = request::target(path, catalogue()) else {
        let content_type = request::header(&parts.headers, header::CONTENT_TYPE);
        if let Some(answer) = review::answer(path, &parts.method, content_type, body) {
            return answer;
        }
        return match parts.method {
            Method::GET => discovery::answer(path, request::header(&parts.headers, header::ACCEPT)),
            _ => Err(Refusal::no_such_path()),
        };
    };
    let kind = &catalogue().resources[target.resource];
    let is_known = match target.subresource.as_str() {
        "" => true,
        "status" => kind.has_status(),
        "finalize" => kind.behaviour == Behaviour::Namespace,
        _ => false,
    };
    if !is_known {
        return Err(Refusal::no_such_path());
    }
    let request = Request {
        shared,
        kind,
        target,
        query: Query::parse(parts.uri.query().unwrap_or_default()),
        headers: &parts.headers,
        body,
    };
    request.answer(&parts.method)
}

struct Request<'a> {
    shared: &'a Arc<Shared>,
    kind: &'static Resource,
    target: Target,
    query: Query,
    headers: &'a HeaderMap,
    body: &'a [u8],
}

impl Request<'_> {
    fn answer(&self, method: &Method) -> Result<ApiResponse, Refusal> {
        self.shared.expire_events();
        match (method.as_str(), self.target.name.is_empty()) {
            ("GET", true) if self.query.is_true("watch") => self.watch(),
            ("GET", true) => self.list(),
            ("GET", false) => self.get(),
            ("POST", true) => self.create(),
            ("PUT", false) => self.update(),
            ("PATCH", false) => self.patch(),
            ("DELETE", true) => self.delete_collection(),
            ("DELETE", false) => self.delete(),
            _ => Err(Refusal::method_not_allowed()),
        }
    }

    fn header(&self, name: header::HeaderName) -> &str {
        request::header(self.headers, name)
    }

    fn content_type(&self) -> &str {
        let whole = self.header(header::CONTENT_TYPE);
        whole.split(';').next().unwrap_or_default().trim()
    }

    /// Field manager of the write: the parameter `fieldManager`, or the first word of the user agent.
    fn manager(&self) -> String {
        match self.query.text("fieldManager") {
            "" => {
                let agent = self.header(header::USER_AGENT).split('/').next().unwrap_or_default();
                let printable = agent.chars().filter(|character| !character.is_control());
                printable.take(128).collect()
            }
            manager => manager.to_owned(),
        }
    }

    fn view(&self) -> View {
        let include = self.query.text("includeObject");
        View::choose(self.target.resource, self.header(header::ACCEPT), include, self.shared.now())
    }

    fn selector(&self) -> Result<Selector, Refusal> {
        let query = &self.query;
        Selector::parse(query.text("labelSelector"), query.text("fieldSelector"), self.kind)
    }

    fn kept_at(&self) -> usize {
        catalogue().kept_at(self.target.resource)
    }

    fn key(&self) -> Key {
        Key {
            resource: self.kept_at(),
            namespace: self.target.namespace.clone().unwrap_or_default(),
            name: self.target.name.clone(),
        }
    }

    fn writing(&self) -> Writing {
        Writing {
            resource: self.kept_at(),
            namespace: self.target.namespace.clone(),
            subresource: self.target.subresource.clone(),
            manager: self.manager(),
            applied: None,
            dry_run: self.query.is_dry_run(),
        }
    }

    fn get(&self) -> Result<ApiResponse, Refusal> {
        let store = self.shared.store();
        let asked = self.query.number("resourceVersion")?.unwrap_or_default();
        if asked > store.revision {
            let current = store.revision;
            return Err(Refusal::too_large_resource_version(asked, current));
        }
        let found = store.get(&self.key()).cloned();
        drop(store);
        let found = found.ok_or_else(|| self.kind.not_found(&self.target.name))?;
        Ok(service::json(StatusCode::OK, &self.view().object(&found)))
    }

    fn list(&self) -> Result<ApiResponse, Refusal> {
        let selector = self.selector()?;
        let namespace = self.target.namespace.as_deref();
        let page = list::list(&self.shared.store(), self.kept_at(), namespace, &selector, &self.query)?;
        Ok(service::json(StatusCode::OK, &self.view().list(&page)))
    }

    fn watch(&self) -> Result<ApiResponse, Refusal> {
        let watched = Watched {
            resource: self.kept_at(),
            namespace: self.target.namespace.clone(),
            selector: self.selector()?,
            view: self.view(),
        };
        Ok(service::events(Watch::open(self.shared, watched, &self.query)?))
    }

    /// Decodes the body. Returns the pruned and defaulted object, and warnings about unknown fields.
    fn decoded(&self) -> Result<(Value, Vec<String>), Refusal> {
        let validation = FieldValidation::parse(self.query.text("fieldValidation"))?;
        let mut object = match self.content_type() {
            "" | "application/json" | "text/plain" => decode::parse(self.body, self.kind)?,
            protobuf::MEDIA_TYPE => {
                let read = protobuf::decode(self.body, self.kind);
                read.map_err(|error| match error {
                    protobuf::ProtobufError::Kind => Refusal::unknown_media_type(),
                    other => Refusal::bad_request(other.to_string()),
                })?
            }
            _ => return Err(Refusal::unknown_media_type()),
        };
        decode::check_type(&mut object, self.kind)?;
        let unknown = decode::normalise(&mut object, self.kind, catalogue())?;
        let warnings = validation.check(&unknown, |why| self.kind.cannot_handle(&self.kind.kind, why))?;
        Ok((object, warnings))
    }

    fn answer_object(&self, status: StatusCode, object: &Value, warnings: Vec<String>) -> ApiResponse {
        let mut answer = service::json(status, &self.view().object(object));
        for warning in warnings {
            if let Ok(value) = HeaderValue::from_str(&format!("299 - {}", object::quoted(&warning))) {
                answer.headers_mut().append(header::WARNING, value);
            }
        }
        answer
    }

    fn create(&self) -> Result<ApiResponse, Refusal> {
        let (object, warnings) = self.decoded()?;
        let created = self.shared.transact(|transaction| transaction.create(&self.writing(), object))?;
        Ok(self.answer_object(StatusCode::CREATED, &created, warnings))
    }

    fn update(&self) -> Result<ApiResponse, Refusal> {
        let (object, warnings) = self.decoded()?;
        let name = &self.target.name;
        match object::name(&object) {
            "" => {
                return Err(Refusal::bad_request(format!(
                    "the name of the object ({name} based on URL) was undeterminable: name must be provided"
                )));
            }
            given => self.check_name(given)?,
        }
        let (status, written) = self.shared.transact(|transaction| {
            let Some(old) = transaction.store.get(&self.key()).cloned() else {
                if !self.kind.allows_create_on_update() {
                    return Err(self.kind.not_found(name));
                }
                self.check_uid(&object, "")?;
                let mut object = object;
                object::set_metadata(&mut object, "resourceVersion", Value::Null);
                return Ok((StatusCode::CREATED, transaction.create(&self.writing(), object)?));
            };
            self.check_uid(&object, object::uid(&old))?;
            Ok((StatusCode::OK, transaction.update(&self.writing(), &old, object)?))
        })?;
        Ok(self.answer_object(status, &written, warnings))
    }

    fn check_name(&self, given: &str) -> Result<(), Refusal> {
        let name = &self.target.name;
        if given == name {
            return Ok(());
        }
        Err(Refusal::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )))
    }

    /// Rejects a replacement whose uid is another than that of the stored object, which is empty if there is none.
    fn check_uid(&self, object: &Value, stored: &str) -> Result<(), Refusal> {
        let given = object::uid(object);
        if given.is_empty() || given == stored {
            return Ok(());
        }
        let name = &self.target.name;
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in \
             precondition: {given}, UID in object meta: {stored}",
            self.kind.storage_key(self.target.namespace.as_deref(), name),
        );
        Err(self.kind.conflict(name, &why))
    }

    fn deletion(&self) -> Result<Deletion, Refusal> {
        let options: DeleteOptions = match self.body {
            [] => DeleteOptions::default(),
            body => serde_json::from_slice(body).map_err(|error| Refusal::bad_request(format!("error decoding options: {error}")))?,
        };
        let policy = match self.query.text("propagationPolicy") {
            "" => options.propagation_policy.as_deref().unwrap_or_default(),
            given => given,
        };
        let propagation = match (policy, options.orphan_dependents) {
            ("Background", _) | ("", Some(false)) => Some(Propagation::Background),
            ("Foreground", _) => Some(Propagation::Foreground),
            ("Orphan", _) | ("", Some(true)) => Some(Propagation::Orphan),
            ("", None) => None,
            (other, _) => {
                let supported = "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"";
                let error = FieldError::new(Mistake::NotSupported, "propagationPolicy", other, supported);
                return Err(Refusal::invalid(about("meta.k8s.io", "DeleteOptions", ""), &[error]));
            }
        };
        Ok(Deletion {
            propagation,
            preconditions: options.preconditions.unwrap_or_default(),
            dry_run: self.query.is_dry_run() || options.dry_run.iter().flatten().any(|run| run == "All"),
        })
    }

    fn delete(&self) -> Result<ApiResponse, Refusal> {
        if !self.target.subresource.is_empty() {
            return Err(Refusal::method_not_allowed());
        }
        let deletion = self.deletion()?;
        let deleted = self.shared.transact(|transaction| transaction.delete(&self.key(), &deletion));
        let deleted = deleted.map_err(|refusal| match refusal {
            // Events are served under two kinds. Report the kind of the request.
            refusal if refusal.is_not_found() => self.kind.not_found(&self.target.name),
            other => other,
        })?;
        Ok(match deleted {
            Deleted::Waiting(object) => self.answer_object(StatusCode::OK, &object, Vec::new()),
            Deleted::Gone(object) => {
                let mut details = self.kind.about(&self.target.name);
                details.uid = Some(object::uid(&object).to_owned());
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
                service::json(StatusCode::OK, &status)
            }
        })
    }

    fn delete_collection(&self) -> Result<ApiResponse, Refusal> {
        if !self.kind.is_custom() && self.kind.behaviour == Behaviour::Namespace {
            return Err(Refusal::method_not_allowed());
        }
        let selector = self.selector()?;
        let deletion = self.deletion()?;
        let namespace = self.target.namespace.as_deref();
        let page = self.shared.transact(|transaction: &mut Transaction<'_>| {
            let page = list::list(transaction.store, self.kept_at(), namespace, &selector, &Query::default())?;
            for object in &page.items {
                let key = crate::write::key_of(self.kept_at(), object);
                match transaction.delete(&key, &deletion) {
                    // An earlier deletion may have deleted this object together with its owner.
                    Err(refusal) if !refusal.is_not_found() => return Err(refusal),
                    _ => {}
                }
            }
            Ok(page)
        })?;
        Ok(service::json(StatusCode::OK, &self.view().list(&page)))
    }
}
