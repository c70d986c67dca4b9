//! Images that are made on this machine.

use std::sync::Mutex;

use bedplate_adapters::doctor::{State, doctor};
use bedplate_adapters::images::{self, Image};

#[tokio::test]
async fn images_are_built_once() {
    let said = Mutex::new(Vec::new());
    let progress = |text: &str| said.lock().unwrap().push(text.to_owned());
    let first = images::build(&Image::ALL, &progress).await.unwrap();
    said.lock().unwrap().clear();
    let second = images::build(&Image::ALL, &progress).await.unwrap();
    for (first, second) in first.iter().zip(&second) {
        assert_eq!(first.id, second.id);
        assert_eq!(second.built_in, None);
        assert!(images::is_current(second.image).await.unwrap());
    }
    assert_eq!(
        *said.lock().unwrap(),
        Image::ALL.map(|image| format!("image {} is there already", image.tag()))
    );

    // The doctor sees them.
    let checks = doctor(std::path::Path::new("/var/tmp")).await;
    for name in ["docker", "image postgres-13", "image storage-helper"] {
        let check = checks.iter().find(|check| check.name == name).unwrap();
        assert_eq!(check.state, State::Ok, "{check:?}");
    }
}
