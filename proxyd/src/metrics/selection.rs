//! Which Services have metrics of their own.

use anyhow::bail;
use proxy_core::names::ServiceName;

/// The Services whose metrics were asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// Namespace and name; `None` is anything.
    patterns: Vec<(Option<String>, Option<String>)>,
}

impl Selection {
    /// Reads patterns like `default/web` and `default/*`.
    pub(super) fn new(patterns: &[String]) -> anyhow::Result<Self> {
        let part = |text: &str| (text != "*").then(|| text.to_owned());
        let mut selection = Self::default();
        for pattern in patterns {
            match pattern.split_once('/') {
                Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                    selection.patterns.push((part(namespace), part(name)));
                }
                _ => bail!(
                    "--service-latency: {pattern:?} must be like namespace/name; \
                     either part may be *"
                ),
            }
        }
        Ok(selection)
    }

    pub(super) fn includes(&self, service: &ServiceName) -> bool {
        let fits = |part: &Option<String>, name: &str| part.as_ref().is_none_or(|it| it == name);
        self.patterns
            .iter()
            .any(|(space, name)| fits(space, &service.namespace) && fits(name, &service.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let check = |pattern: &str, namespace: &str, name: &str| {
            let selection = Selection::new(&[pattern.to_owned()]).unwrap();
            selection.includes(&ServiceName::new(namespace, name))
        };
        assert!(check("a/b", "a", "b") && check("a/*", "a", "c") && check("*/*", "x", "y"));
        assert!(!check("a/b", "a", "c") && !check("a/*", "b", "b") && !check("*/b", "a", "c"));
        assert!(!Selection::default().includes(&ServiceName::new("a", "b")));
        for bad in ["a", "", "/b", "a/"] {
            assert!(Selection::new(&[bad.to_owned()]).is_err(), "{bad:?}");
        }
    }
}
