//! Takes secrets out of a command line before it is recorded.

/// Words that announce a secret, as a whole word of an option's name (`--api-key`, `wandb.api_key=`).
const SECRET_WORDS: &[&str] = &[
    "apikey",
    "auth",
    "authorization",
    "bearer",
    "credential",
    "credentials",
    "key",
    "keys",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "pwd",
    "secret",
    "secrets",
    "token",
    "tokens",
];

/// What stands in the place of a secret.
const REDACTED: &str = "<redacted>";
/// How many arguments are kept, and how many characters of each.
const ARGUMENTS_MAX: usize = 64;
const ARGUMENT_CHARACTERS_MAX: usize = 256;

/// Returns a command line fit to be recorded: secrets replaced, at most 64 arguments of 256 characters each.
///
/// A secret is the value after a name with a word like token, key, secret or password in it, as `--name value` or
/// `name=value`, and the password of a URL.
pub(crate) fn command_line(arguments: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut value_is_secret = false;
    for argument in arguments.iter().take(ARGUMENTS_MAX) {
        let is_option = argument.starts_with("--");
        if value_is_secret && !is_option {
            kept.push(REDACTED.to_owned());
            value_is_secret = false;
            continue;
        }
        value_is_secret = false;
        kept.push(match argument.split_once('=') {
            Some((name, _)) if names_a_secret(name) => format!("{name}={REDACTED}"),
            Some(_) => cut(&without_url_password(argument)),
            None => {
                value_is_secret = argument.starts_with('-') && names_a_secret(argument);
                cut(&without_url_password(argument))
            }
        });
    }
    if arguments.len() > ARGUMENTS_MAX {
        kept.push(format!("… {} more", arguments.len() - ARGUMENTS_MAX));
    }
    kept
}

fn names_a_secret(name: &str) -> bool {
    name.split(|character: char| !character.is_ascii_alphanumeric())
        .any(|word| SECRET_WORDS.contains(&word.to_ascii_lowercase().as_str()))
}

/// `scheme://user:password@host` without the password.
fn without_url_password(argument: &str) -> String {
    let Some((scheme, rest)) = argument.split_once("://") else {
        return argument.to_owned();
    };
    let authority_length = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_length);
    match authority
        .rsplit_once('@')
        .and_then(|(user, host)| Some((user.split_once(':')?.0, host)))
    {
        Some((user, host)) => format!("{scheme}://{user}:{REDACTED}@{host}{path}"),
        None => argument.to_owned(),
    }
}

fn cut(argument: &str) -> String {
    match argument.char_indices().nth(ARGUMENT_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &argument[..end]),
        None => argument.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(arguments: &[&str]) -> Vec<String> {
        command_line(
            &arguments
                .iter()
                .map(|argument| (*argument).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn values_after_secret_names_are_replaced() {
        assert_eq!(
            redacted(&[
                "train.py",
                "--api-key",
                "s3cr3t",
                "--lr=0.1",
                "wandb.api_key=s3cr3t",
                "--token=abc"
            ]),
            [
                "train.py",
                "--api-key",
                "<redacted>",
                "--lr=0.1",
                "wandb.api_key=<redacted>",
                "--token=<redacted>"
            ]
        );
        assert_eq!(redacted(&["-password", "x"]), ["-password", "<redacted>"]);
    }

    #[test]
    fn names_that_only_resemble_secrets_stay() {
        let harmless = [
            "--tokenizer",
            "gpt2",
            "monkey=1",
            "--keyboard=us",
            "--token",
            "--verbose",
        ];
        assert_eq!(redacted(&harmless), harmless);
    }

    #[test]
    fn passwords_in_urls_are_replaced() {
        assert_eq!(
            redacted(&[
                "--store=redis://me:hunter2@host:6379/0",
                "https://host/a@b:c"
            ]),
            [
                "--store=redis://me:<redacted>@host:6379/0",
                "https://host/a@b:c"
            ]
        );
    }

    #[test]
    fn length_and_number_are_bounded_and_the_cut_is_said() {
        let many = vec!["x".repeat(10_000); 100];
        let kept = command_line(&many);
        assert_eq!(kept.len(), ARGUMENTS_MAX + 1);
        assert_eq!(kept.last().map(String::as_str), Some("… 36 more"));
        assert_eq!(kept[0].chars().count(), ARGUMENT_CHARACTERS_MAX + 1);
    }
}
