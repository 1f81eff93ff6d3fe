//! Invalid flags of the image models. All are refused before anything is trained.

use crate::process::windlass;

#[track_caller]
fn assert_refused(words: &str, message: &str) {
    let told = windlass(&format!("train {words}")).run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert_eq!(told.stderr.lines().last(), Some(format!("error: {message}").as_str()), "{told}");
    assert_eq!(told.stdout, "", "{told}");
}

#[test]
fn layers_without_units_are_refused() {
    assert_refused("autoencoder --hidden 0", "--hidden is 0, expected at least 1");
    let latent = "autoencoder --variant variational --latent 0";
    assert_refused(latent, "--latent is 0, expected at least 1");
    assert_refused("stn --hidden 0", "--hidden is 0, expected at least 1");
    assert_refused("stn --localisation 0", "--localisation is 0, expected at least 1");
    assert_refused("stn --filters 0", "--filters is 0, expected at least 1");
    assert_refused("stn --images 0", "--images is 0, expected at least one to train on");
}

#[test]
fn probabilities_and_deviations_that_are_none_are_refused() {
    for keep in ["0", "-0.5", "1.5", "NaN"] {
        let message = format!("--keep-probability is {keep}, expected a probability above 0 and up to 1");
        assert_refused(&format!("stn --keep-probability {keep}"), &message);
        assert_refused(&format!("autoencoder --variant masking --keep-probability {keep}"), &message);
    }
    for scale in ["-1", "inf"] {
        let message = format!("--noise-scale is {scale}, expected zero or more");
        assert_refused(&format!("autoencoder --variant noise --noise-scale {scale}"), &message);
    }
}

#[test]
fn flags_of_another_variant_are_refused() {
    assert_refused("autoencoder --noise-scale 0.1", "--noise-scale needs --variant noise");
    assert_refused("autoencoder --variant noise --keep-probability 0.5", "--keep-probability needs --variant masking");
    assert_refused("autoencoder --latent 5", "--latent needs --variant variational");
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_training() {
    for model in ["autoencoder", "stn"] {
        let missing = "cannot write a picture to none/out.png: No such file or directory (os error 2)";
        assert_refused(&format!("{model} --samples none/out.png"), missing);
        let other = "cannot write a picture to out.gif: expected a name that ends in .png";
        assert_refused(&format!("{model} --samples out.gif"), other);
    }
}
