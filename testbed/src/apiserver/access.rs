//! Who may do what: requests in the terms of RBAC, and the rules of a role.

use std::fmt;

use serde::Deserialize;

/// A rule of a `Role` or `ClusterRole` (`rbac.authorization.k8s.io/v1`), for resources as a whole.
///
/// Fields that would narrow or widen it further (`resourceNames`, `nonResourceURLs`) are not read:
/// a role that has them is refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyRule {
    /// Groups of the API; the core group is the empty text.
    pub api_groups: Vec<String>,
    /// Resources by plural name, maybe with a subresource after a slash.
    pub resources: Vec<String>,
    /// `get`, `list`, `watch`, `create` and so on.
    pub verbs: Vec<String>,
}

impl PolicyRule {
    /// Whether the rule allows this. A star allows anything, as in RBAC.
    pub fn allows(&self, access: &Access) -> bool {
        let has = |list: &[String], wanted: &str| list.iter().any(|it| it == wanted || it == "*");
        has(&self.api_groups, &access.group)
            && has(&self.resources, &access.resource)
            && has(&self.verbs, &access.verb)
    }

    /// Each single thing that the rule grants.
    pub fn grants(&self) -> Vec<Access> {
        let mut grants = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                grants.extend(self.verbs.iter().map(|verb| Access {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                }));
            }
        }
        grants
    }
}

/// What a request is for, as the API server asks its authorizer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// Group of the API; empty for the core group.
    pub group: String,
    /// Plural name, with the subresource after a slash.
    pub resource: String,
    /// `get`, `list`, `watch`, `create` and so on.
    pub verb: String,
}

impl Access {
    /// From a request; `None` if the path is not a resource's.
    pub(super) fn of(method: &str, path: &str, is_watch: bool) -> Option<Self> {
        let mut parts = path.split('/').skip(1);
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let _version = parts.next()?;
        let mut rest: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        // A longer path goes on to what is in the namespace; a shorter one is the Namespace's own.
        if rest.len() > 2 && rest[0] == "namespaces" {
            rest.drain(..2);
        }
        let (resource, name, subresource) = (rest.first()?, rest.get(1), rest.get(2));
        let verb = match (method, name) {
            ("GET", _) if is_watch => "watch",
            ("GET", Some(_)) => "get",
            ("GET", None) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", Some(_)) => "delete",
            ("DELETE", None) => "deletecollection",
            _ => return None,
        };
        let resource = match subresource {
            Some(subresource) => format!("{resource}/{subresource}"),
            None => (*resource).to_owned(),
        };
        Some(Self { group: group.to_owned(), resource, verb: verb.to_owned() })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_put_in_the_terms_of_rbac() {
        let check = |method: &str, path: &str, expected: Option<&str>| {
            let access = Access::of(method, path, false).map(|access| access.to_string());
            assert_eq!(access.as_deref(), expected, "{method} {path}");
        };
        check("GET", "/api/v1/services", Some("list services"));
        check("GET", "/api/v1/namespaces/a/services", Some("list services"));
        check("GET", "/api/v1/namespaces/a/services/b", Some("get services"));
        check("GET", "/api/v1/nodes/b", Some("get nodes"));
        check("GET", "/api/v1/namespaces", Some("list namespaces"));
        check("GET", "/api/v1/namespaces/a", Some("get namespaces"));
        check("PATCH", "/api/v1/nodes/b/status", Some("patch nodes/status"));
        check("DELETE", "/api/v1/nodes", Some("deletecollection nodes"));
        let events = "/apis/events.k8s.io/v1/namespaces/a/events";
        check("POST", events, Some("create events.events.k8s.io"));
        check("GET", "/version", None);
        check("GET", "/apis", None);
        check("BREW", "/api/v1/nodes", None);
        let watch = Access::of("GET", "/apis/discovery.k8s.io/v1/endpointslices", true).unwrap();
        assert_eq!(watch.to_string(), "watch endpointslices.discovery.k8s.io");
    }

    #[test]
    fn rules_allow_what_they_name() {
        let rule = |groups: &[&str], resources: &[&str], verbs: &[&str]| {
            let texts = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect();
            PolicyRule {
                api_groups: texts(groups),
                resources: texts(resources),
                verbs: texts(verbs),
            }
        };
        let access = Access::of("GET", "/api/v1/services", false).unwrap();
        assert!(rule(&[""], &["pods", "services"], &["list"]).allows(&access));
        assert!(rule(&["*"], &["*"], &["*"]).allows(&access));
        assert!(!rule(&[""], &["services"], &["watch"]).allows(&access));
        assert!(!rule(&["apps"], &["services"], &["list"]).allows(&access));
        assert!(!rule(&[""], &["services/status"], &["list"]).allows(&access));
        assert_eq!(rule(&["", "a"], &["b", "c"], &["get"]).grants().len(), 4);
    }
}
