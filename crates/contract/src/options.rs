//! Required names of the environment variables of command-line options.

/// Returns the visible options whose environment variable is not `SAHASRA_` and the name of the option, in upper case. `--kubeconfig` reads
/// `KUBECONFIG`, as all programs of Kubernetes do.
pub fn deviating_variables(command: &clap::Command) -> Vec<String> {
    let options = command.get_arguments().filter(|option| !option.is_hide_set());
    let deviates = |option: &&clap::Arg| {
        let name = option.get_long().unwrap_or_default();
        let expected = match name {
            "" | "help" | "version" => return false,
            "kubeconfig" => "KUBECONFIG".to_owned(),
            _ => format!("SAHASRA_{}", name.replace('-', "_").to_uppercase()),
        };
        option.get_env().is_none_or(|variable| *variable != *expected)
    };
    options.filter(deviates).map(|option| format!("--{}", option.get_id())).collect()
}
