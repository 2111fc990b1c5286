use std::fs;

use super::*;

fn connection(kubeconfig: &Path) -> KubeConnection {
    KubeConnection { kubeconfig: Some(kubeconfig.to_owned()), ..KubeConnection::default() }
}

/// Writes a kubeconfig whose cluster and user have these extra lines.
fn kubeconfig(dir: &Path, cluster: &str, user: &str) -> PathBuf {
    let path = dir.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: default\n\
         contexts: [{{name: default, context: {{cluster: default, user: default}}}}]\n\
         clusters: [{{name: default, cluster: {{server: 'https://10.0.0.1:6443'{cluster}}}}}]\n\
         users: [{{name: default, user: {{{user}}}}}]\n"
    );
    fs::write(&path, text).unwrap();
    path
}

fn failure(cluster: &str, user: &str, files: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let path = kubeconfig(dir.path(), cluster, user);
    let error = load(&connection(&path)).unwrap_err();
    error_chain(&error).replace(dir.path().to_str().unwrap(), "DIR")
}

#[test]
fn bad_files_are_named_with_the_reason() {
    let missing = error_chain(&load(&connection(Path::new("/nonexistent/x"))).unwrap_err());
    assert!(missing.starts_with("kubeconfig /nonexistent/x cannot be used: "), "{missing}");
    assert!(missing.contains("No such file"), "{missing}");

    let no_token = failure("", "tokenFile: none", &[]);
    assert!(no_token.starts_with("token file DIR/none cannot be read: No such file"), "{no_token}");

    let no_ca = failure(", certificate-authority: ca.crt", "", &[]);
    assert!(no_ca.contains("DIR/ca.crt") && no_ca.contains("No such file"), "{no_ca}");

    let empty_ca = failure(", certificate-authority: ca.crt", "", &[("ca.crt", "hello")]);
    assert!(empty_ca.ends_with("holds no certificate"), "{empty_ca}");
    let named = "certificate-authority DIR/ca.crt of kubeconfig DIR/kubeconfig";
    assert!(empty_ca.contains(named), "{empty_ca}");

    let files = [("c.crt", "hello"), ("c.key", "hello")];
    let user = "client-certificate: c.crt, client-key: c.key";
    let bad_certificate = failure("", user, &files);
    let named = "client-certificate DIR/c.crt or client-key DIR/c.key";
    assert!(bad_certificate.contains(named), "{bad_certificate}");
}

#[test]
fn text_that_is_no_kubeconfig_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    for text in ["clusters: 5", "{", "apiVersion: v1\nkind: Config\n"] {
        fs::write(&path, text).unwrap();
        let error = error_chain(&load(&connection(&path)).unwrap_err());
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn kubeadm_s_kubeconfig_is_read_and_the_master_flag_wins() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), "secret").unwrap();
    let path = kubeconfig(dir.path(), "", "tokenFile: token");
    let mut settings = connection(&path);
    settings.user_agent = "proxyd/1".to_owned();
    let config = load(&settings).unwrap();
    assert_eq!(config.cluster_url, "https://10.0.0.1:6443");
    assert_eq!(config.headers[0].1, "proxyd/1");
    settings.master = Some("10.0.0.2:8080".to_owned());
    assert_eq!(load(&settings).unwrap().cluster_url, "http://10.0.0.2:8080");
    settings.kubeconfig = None;
    assert_eq!(load(&settings).unwrap().cluster_url, "http://10.0.0.2:8080");
    for bad in ["", "ftp://x", "http://", "a b"] {
        settings.master = Some(bad.to_owned());
        let error = error_chain(&load(&settings).unwrap_err());
        assert!(error.starts_with("the API server's address"), "{bad}: {error}");
    }
}

#[test]
fn outside_a_cluster_a_kubeconfig_is_needed() {
    let error = error_chain(&load(&KubeConnection::default()).unwrap_err());
    assert!(error.starts_with("no kubeconfig is given"), "{error}");
}

#[test]
fn proxies_are_chosen_for_the_server_and_not_for_the_proxy() {
    let chosen = |server: &'static str, none: &str| {
        let proxies = ["http://plain:1", "http://me:secret@secure:2"].map(str::to_owned);
        let [http, https] = proxies;
        proxy(&Uri::from_static(server), http, https, none.to_owned()).map(|uri| uri.to_string())
    };
    let secure = Some("http://me:secret@secure:2/".to_owned());
    assert_eq!(chosen("https://10.0.0.1:6443", ""), secure);
    assert_eq!(chosen("https://10.0.0.1:6443", "secure,plain"), secure);
    assert_eq!(chosen("https://10.0.0.1:6443", "10.0.0.0/8"), None);
    assert_eq!(chosen("https://api.example.org", ".example.org"), None);
    assert_eq!(chosen("https://api.example.org", "*"), None);
    assert_eq!(chosen("http://10.0.0.1", ""), Some("http://plain:1/".to_owned()));
    assert_eq!(chosen("https://127.0.0.1:6443", ""), None);
    assert_eq!(chosen("https://[::1]:6443", ""), None);
    assert_eq!(chosen("https://localhost:6443", ""), None);
}

#[test]
fn credentials_of_a_proxy_are_sent_to_it() {
    let credentials = proxy_credentials(&Uri::from_static("http://me:secret@secure:2"));
    assert_eq!(credentials.unwrap(), "Basic bWU6c2VjcmV0");
    assert!(proxy_credentials(&Uri::from_static("http://secure:2")).is_none());
}

#[test]
fn a_kubeconfig_s_own_proxy_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = kubeconfig(dir.path(), ", proxy-url: 'socks5://10.1.1.1:1080'", "");
    let config = load(&connection(&path)).unwrap();
    assert_eq!(config.proxy_url.unwrap(), "socks5://10.1.1.1:1080");
}
