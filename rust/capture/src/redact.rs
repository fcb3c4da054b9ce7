//! Takes secrets out of a command line before it is recorded.

/// Words that announce a secret where they stand alone in a name (`--api-key`, `wandb.api_key=`).
const SECRET_WORDS: &[&str] = &["auth", "jwt", "key", "keys", "pass", "pat", "pwd"];

/// Parts of a name that announce a secret wherever they stand (`--accessToken`, `HF_TOKEN`).
const SECRET_PARTS: &[&str] = &[
    "apikey",
    "authorization",
    "bearer",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "secret",
    "token",
];

/// Words with such a part that are none: what a tokenizer is called is no secret.
const HARMLESS_PARTS: &[&str] = &["tokeniz"];

/// Words that end in "key" and are none.
const HARMLESS_KEYS: &[&str] = &[
    "donkey", "hockey", "hotkey", "jockey", "monkey", "turkey", "whiskey",
];

/// What stands in the place of a secret.
const REDACTED: &str = "<redacted>";
/// How many arguments are kept, and how many characters of each.
const ARGUMENTS_MAX: usize = 64;
const ARGUMENT_CHARACTERS_MAX: usize = 256;

/// Returns a command line fit to be recorded: secrets replaced, at most 64 arguments of 256 characters each.
///
/// A secret is the value after a name with a word like token, key, secret or password in it, as `--name value`,
/// `name value`, `name=value` or `name: value` anywhere in an argument, and what stands before the `@` of a URL.
pub(crate) fn command_line(arguments: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut value_is_secret = false;
    for argument in arguments.iter().take(ARGUMENTS_MAX) {
        let is_option = argument.starts_with("--");
        if value_is_secret && (!is_option || argument == "--") {
            // Behind `--` comes the value that begins with a dash.
            value_is_secret = argument == "--";
            kept.push(if value_is_secret {
                argument.clone()
            } else {
                REDACTED.to_owned()
            });
            continue;
        }
        // An option, or a bare word: a name with a dot is rather a file's.
        let is_name = argument.chars().all(is_of_name)
            && (argument.starts_with('-') || !argument.contains('.'));
        value_is_secret = is_name && names_a_secret(argument);
        kept.push(cut(&without_pairs(&without_url_users(argument))));
    }
    if arguments.len() > ARGUMENTS_MAX {
        kept.push(format!("… {} more", arguments.len() - ARGUMENTS_MAX));
    }
    kept
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.')
}

fn names_a_secret(name: &str) -> bool {
    words(name).any(|word| {
        let has = |parts: &[&str]| parts.iter().any(|part| word.contains(part));
        SECRET_WORDS.contains(&word.as_str())
            || (has(SECRET_PARTS) && !has(HARMLESS_PARTS))
            || (word.ends_with("key") && !HARMLESS_KEYS.contains(&word.as_str()))
    })
}

/// The words of a name in lower case; a capital letter begins a new one, and the whole counts as a word too.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut separated = String::new();
    let mut previous = ' ';
    for character in name.chars() {
        if character.is_ascii_uppercase() && previous.is_ascii_lowercase() {
            separated.push(' ');
        }
        separated.push(if character.is_ascii_alphanumeric() {
            character.to_ascii_lowercase()
        } else {
            ' '
        });
        previous = character;
    }
    let mut words: Vec<String> = separated.split_whitespace().map(str::to_owned).collect();
    words.push(separated.replace(' ', ""));
    words.into_iter()
}

/// The text with the value of every pair whose name announces a secret replaced.
fn without_pairs(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_of_name) {
        let end = rest[start..]
            .find(|character| !is_of_name(character))
            .map_or(rest.len(), |length| start + length);
        let name = &rest[start..end];
        let after = &rest[end..];
        out.push_str(&rest[..end]);
        rest = after;
        let marks = after.trim_start_matches(['"', '\'', ' ']);
        let Some(value) = marks.strip_prefix(['=', ':']) else {
            continue;
        };
        if !names_a_secret(name) || value.starts_with("//") {
            continue;
        }
        let value = value.trim_start_matches(['"', '\'', ' ']);
        // An HTTP header's scheme stands before the secret.
        let value = ["Bearer ", "Basic ", "Token "]
            .iter()
            .find_map(|scheme| value.strip_prefix(scheme))
            .unwrap_or(value);
        let length = value
            .find([',', ';', '&', ' ', '"', '\'', '}', ']'])
            .unwrap_or(value.len());
        if length > 0 {
            out.push_str(&after[..after.len() - value.len()]);
            out.push_str(REDACTED);
        } else {
            out.push_str(&after[..after.len() - value.len()]);
        }
        rest = &value[length..];
    }
    out.push_str(rest);
    out
}

/// The text without what stands before the `@` of every URL in it.
fn without_url_users(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (scheme, after) = rest.split_at(at + 3);
        out.push_str(scheme);
        let authority = after
            .find(['/', '?', '#', ' ', '"', '\''])
            .unwrap_or(after.len());
        rest = match after[..authority].rfind('@') {
            Some(user) => {
                out.push_str(REDACTED);
                &after[user..]
            }
            None => after,
        };
    }
    out.push_str(rest);
    out
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
    fn no_secret_is_left_however_it_is_passed() {
        for arguments in [
            &["--api-key", "S3CR3T"][..],
            &["--token=S3CR3T"],
            &["wandb.api_key=S3CR3T"],
            &["-password", "S3CR3T"],
            &["--accessToken=S3CR3T"],
            &["--authToken", "S3CR3T"],
            &["--wandbkey", "S3CR3T"],
            &["--openai-key", "--", "S3CR3T"],
            &["--pass", "S3CR3T"],
            &["--jwt", "S3CR3T"],
            &["token", "S3CR3T"],
            &["HF_TOKEN=S3CR3T"],
            &["--header", "Authorization: Bearer S3CR3T"],
            &["--cfg={\"api_key\": \"S3CR3T\", \"lr\": 1}"],
            &["api_key: S3CR3T"],
            &["https://S3CR3T@github.com/x"],
            &["--store=redis://me:S3CR3T@host:6379/0"],
            &["https://a/ https://u:S3CR3T@b/"],
            &["https://h/?x=1&token=S3CR3T"],
            &["--lr=1,token=S3CR3T"],
            &["host=h password=S3CR3T"],
            &["'secret'='S3CR3T'"],
        ] {
            let kept = redacted(arguments).join(" ");
            assert!(!kept.contains("S3CR3T"), "{arguments:?} became {kept}");
            assert!(kept.contains(REDACTED), "{arguments:?} became {kept}");
        }
    }

    #[test]
    fn what_stands_around_a_secret_stays() {
        assert_eq!(
            redacted(&[
                "train.py",
                "--lr=1,token=x,seed=2",
                "--cfg={\"key\": \"x\", \"n\": 1}"
            ]),
            [
                "train.py",
                "--lr=1,token=<redacted>,seed=2",
                "--cfg={\"key\": \"<redacted>\", \"n\": 1}"
            ]
        );
        assert_eq!(
            redacted(&["--store=redis://me:x@host:6379/0"]),
            ["--store=redis://<redacted>@host:6379/0"]
        );
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
            "--pattern=x",
            "a=b",
            "https://host/a@b:c",
            "model.author=me",
            "path/to/x.py",
        ];
        assert_eq!(redacted(&harmless), harmless);
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
