//! Patches of all types, including server-side apply.

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusDetails;
use serde_json::{Value, json};

use super::Request;
use crate::decode::{self, FieldValidation};
use crate::managed;
use crate::object;
use crate::patch;
use crate::refusal::{FieldError, Refusal, about};
use crate::resource::{Behaviour, catalogue};
use crate::service::ApiResponse;

impl Request<'_> {
    pub(super) fn patch(&self) -> Result<ApiResponse, Refusal> {
        let content_type = self.content_type();
        let is_custom = self.kind.is_custom();
        match content_type {
            "application/merge-patch+json" | "application/json-patch+json" => {}
            "application/strategic-merge-patch+json" if !is_custom => {}
            "application/apply-patch+yaml" => return self.apply(),
            "application/strategic-merge-patch+json" => {
                let message = "the body of the request was in an unknown format - accepted media types include: \
                     application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
                let code = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                return Err(Refusal::new(code, "UnsupportedMediaType", message, StatusDetails::default()));
            }
            _ => return Err(Refusal::unknown_media_type()),
        }
        let patch: Value =
            serde_json::from_slice(self.body).map_err(|error| Refusal::bad_request(format!("error decoding patch: {error}")))?;
        let validation = FieldValidation::parse(self.query.text("fieldValidation"))?;
        let (written, warnings) = self.shared.transact(|transaction| {
            let old = transaction
                .store
                .get(&self.key())
                .cloned()
                .ok_or_else(|| self.kind.not_found(&self.target.name))?;
            let (patched, warnings) = self.patched(&old, &patch, content_type, validation)?;
            Ok((transaction.update(&self.writing(), &old, patched)?, warnings))
        })?;
        Ok(self.answer_object(StatusCode::OK, &written, warnings))
    }

    /// Server-side apply: creates the object, or merges the configuration into it.
    fn apply(&self) -> Result<ApiResponse, Refusal> {
        let query = &self.query;
        let name = &self.target.name;
        if query.text("fieldManager").is_empty() {
            let error = FieldError::required("fieldManager", "is required for apply patch");
            return Err(Refusal::invalid(about("meta.k8s.io", "PatchOptions", ""), &[error]));
        }
        let mut config = self.configuration()?;
        if !config["metadata"]["managedFields"].is_null() {
            return Err(Refusal::bad_request("metadata.managedFields must be nil"));
        }
        if self.kind.behaviour == Behaviour::NewEvent {
            crate::events::to_core(&mut config);
        }
        object::set_metadata(&mut config, "name", json!(name));
        if let Some(namespace) = &self.target.namespace {
            object::set_metadata(&mut config, "namespace", json!(namespace));
        }
        let force = query.is_true("force");
        let (status, written) = self.shared.transact(|transaction| {
            let old = transaction.store.get(&self.key()).cloned();
            let mut writing = self.writing();
            if old.is_none() && !writing.subresource.is_empty() {
                return Err(self.kind.not_found(name));
            }
            let (mut object, entries) = managed::apply(transaction, &writing, force, old.as_deref(), &config)?;
            decode::normalise(&mut object, self.kind, catalogue())?;
            writing.applied = Some(entries);
            Ok(match old {
                Some(old) => (StatusCode::OK, transaction.update(&writing, &old, object)?),
                None => (StatusCode::CREATED, transaction.create(&writing, object)?),
            })
        })?;
        Ok(self.answer_object(status, &written, Vec::new()))
    }

    /// The applied configuration, in JSON or YAML. Fails if its kind or name is wrong, or if it has unknown fields.
    fn configuration(&self) -> Result<Value, Refusal> {
        let parsed = serde_json::from_slice(self.body).ok();
        let mut config: Value = match parsed {
            Some(config) => config,
            None => {
                let text = std::str::from_utf8(self.body).unwrap_or_default();
                sahasra_crds::yaml::parse(text).map_err(|error| Refusal::bad_request(format!("error decoding YAML: {error}")))?
            }
        };
        decode::check_type(&mut config, self.kind)?;
        let name = &self.target.name;
        let given = object::name(&config);
        if !given.is_empty() {
            self.check_name(given)?;
        }
        let namespace = object::namespace(&config).to_owned();
        let unknown = managed::typed::undeclared(&config, self.kind.merge_schema());
        if let Some(first) = unknown.first() {
            let list = match unknown.len() {
                1 => format!("{first}: field not declared in schema"),
                _ => {
                    let lines = unknown.iter().map(|path| format!("  {path}: field not declared in schema"));
                    format!("errors:\n{}", lines.collect::<Vec<_>>().join("\n"))
                }
            };
            return Err(Refusal::plain(format!(
                "failed to create typed patch object ({namespace}/{name}; {}, Kind={}): {list}",
                self.kind.api_version(),
                self.kind.kind
            )));
        }
        Ok(config)
    }

    fn patched(
        &self,
        old: &Value,
        patch: &Value,
        content_type: &str,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>), Refusal> {
        let mut document = old.clone();
        if self.kind.behaviour == Behaviour::NewEvent {
            crate::events::from_core(&mut document);
        }
        match content_type {
            "application/json-patch+json" => patch::operations(&mut document, patch)?,
            "application/strategic-merge-patch+json" => patch::strategic(&mut document, patch, Some(self.kind.merge_schema())),
            _ => json_patch::merge(&mut document, patch),
        }
        decode::check_type(&mut document, self.kind)?;
        self.check_name(object::name(&document))?;
        let shown = document.clone();
        let unknown = decode::normalise(&mut document, self.kind, catalogue())?;
        let warnings = validation.check(&unknown, |why| {
            let error = FieldError::invalid("patch", shown.to_string(), why);
            Refusal::invalid(about("", "", ""), &[error])
        })?;
        Ok((document, warnings))
    }
}
