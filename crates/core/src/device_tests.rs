//! Tests of `device`: all forms of a name, and how a name is completed by another.

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn any_name() -> impl Strategy<Value = DeviceName> {
    let device = (select(&DeviceKind::ALL[..]), option::of(any::<u32>()));
    let device = device.prop_map(|(kind, index)| LocalName { kind, index });
    (option::of("[A-Za-z][A-Za-z0-9_]{0,8}"), option::of(any::<u32>()), option::of(any::<u32>()), option::of(device))
        .prop_map(|(job, replica, task, device)| DeviceName { job, replica, task, device })
}

fn read(text: &str) -> String {
    text.parse::<DeviceName>().unwrap_or_else(|error| panic!("{error}")).to_string()
}

fn refused(text: &str) -> String {
    text.parse::<DeviceName>().unwrap_err().to_string()
}

#[test]
fn every_form_of_a_name_is_read() {
    for (text, full) in [
        ("/job:worker/replica:0/task:3/device:GPU:1", "/job:worker/replica:0/task:3/device:GPU:1"),
        ("/job:worker/task:3/gpu:1", "/job:worker/task:3/device:GPU:1"),
        ("/task:2", "/task:2"),
        ("/job:ps", "/job:ps"),
        ("/gpu:1", "/device:GPU:1"),
        ("/GPU:1", "/device:GPU:1"),
        ("/gpu", "/device:GPU:*"),
        ("gpu", "/device:GPU:*"),
        ("gpu:*", "/device:GPU:*"),
        ("cpu:0", "/device:CPU:0"),
        ("CUDA:1", "/device:CUDA:1"),
        ("rocm:2", "/device:ROCM:2"),
        ("vulkan:0", "/device:VULKAN:0"),
        ("metal", "/device:METAL:*"),
        ("wgpu:0", "/device:WGPU:0"),
        ("/device:gpu:1", "/device:GPU:1"),
        ("/device:GPU", "/device:GPU:*"),
        ("/device:GPU:*", "/device:GPU:*"),
        ("/device:*", ""),
        ("/job:*/replica:*/task:*/device:*:*", ""),
        ("/device:CPU:0/task:1/job:worker", "/job:worker/task:1/device:CPU:0"),
    ] {
        assert_eq!(read(text), full, "{text}");
    }
}

#[test]
fn what_names_no_device_is_refused_by_its_part() {
    assert_eq!(refused(""), "the name of a device is empty");
    for (text, error) in [
        ("/", "\"\" in the device name \"/\" is not a job, replica, task or device"),
        ("//gpu:0", "\"\" in the device name \"//gpu:0\" is not a job, replica, task or device"),
        ("/gpu:0/", "\"\" in the device name \"/gpu:0/\" is not a job, replica, task or device"),
        ("/job", "\"job\" in the device name \"/job\" is not a job, replica, task or device"),
        ("/tpu:0", "\"tpu:0\" in the device name \"/tpu:0\" is not a job, replica, task or device"),
        ("tpu", "\"tpu\" in the device name \"tpu\" is not a kind of device"),
        ("task:2", "\"task\" in the device name \"task:2\" is not a kind of device"),
        ("/device:*:1", "\"*\" in the device name \"/device:*:1\" is not a kind of device"),
        ("gpu:", "\"\" in the device name \"gpu:\" is not a number"),
        ("gpu:-1", "\"-1\" in the device name \"gpu:-1\" is not a number"),
        ("gpu:+1", "\"+1\" in the device name \"gpu:+1\" is not a number"),
        ("gpu:1:2", "\"1:2\" in the device name \"gpu:1:2\" is not a number"),
        ("gpu:4294967296", "\"4294967296\" in the device name \"gpu:4294967296\" is not a number"),
        ("/task:x", "\"x\" in the device name \"/task:x\" is not a number"),
        ("/job:2nd", "\"2nd\" in the device name \"/job:2nd\" is not a job name: use letters, digits and underscores"),
        ("/task:1/task:1", "the device name \"/task:1/task:1\" gives the task twice"),
        ("/cpu:0/gpu:0", "the device name \"/cpu:0/gpu:0\" gives the device twice"),
    ] {
        assert_eq!(refused(text), error, "{text}");
    }
}

#[test]
fn a_name_is_completed_part_by_part() {
    let or = |own: &str, default: &str| own.parse::<DeviceName>().unwrap().or(&default.parse().unwrap()).to_string();
    assert_eq!(or("/gpu:1", "/job:worker/task:2"), "/job:worker/task:2/device:GPU:1");
    assert_eq!(or("/job:ps/task:0", "/job:worker/task:2/cpu:0"), "/job:ps/task:0/device:CPU:0");
    assert_eq!(or("gpu", "gpu:3"), "/device:GPU:3");
    // As in TensorFlow, where kind and number are separate parts.
    assert_eq!(or("cpu", "gpu:1"), "/device:CPU:1");
}

#[test]
fn a_name_says_of_which_tasks_it_may_be() {
    let may_be = |name: &str, task| name.parse::<DeviceName>().unwrap().may_be_of(task);
    for name in ["gpu:3", "/job:worker", "/task:1", "/job:worker/replica:0/task:1/cpu:0"] {
        assert!(may_be(name, TaskId::worker(1)), "{name}");
    }
    for name in ["/job:ps/task:1", "/task:0", "/replica:1", "/job:chief"] {
        assert!(!may_be(name, TaskId::worker(1)), "{name}");
    }
    let own: DeviceName = "/job:worker/replica:0/task:1".parse().unwrap();
    assert_eq!(own.to_string(), "/job:worker/replica:0/task:1");
    assert!(own.may_be_of(TaskId::worker(1)) && !own.may_be_of(TaskId::ps(1)));
}

proptest! {
    #[test]
    fn a_name_is_read_as_it_is_printed(name in any_name()) {
        let text = name.to_string();
        if !text.is_empty() {
            prop_assert_eq!(text.parse::<DeviceName>().unwrap(), name.clone());
            prop_assert_eq!(text.replace("/device:", "/").parse::<DeviceName>().unwrap(), name.clone());
        }
        if let Some(device) = name.device {
            prop_assert_eq!(device.to_string().parse::<DeviceName>().unwrap(), DeviceName::from(device));
        }
    }

    #[test]
    fn the_order_of_parts_does_not_matter(name in any_name()) {
        let text = name.to_string();
        let turned: String = text.rsplit('/').filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect();
        prop_assert!(text.is_empty() || turned.parse::<DeviceName>().unwrap() == name, "{} {}", text, turned);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[/:*a-z0-9]{0,24}|\\PC{0,16}") {
        let _ = text.parse::<DeviceName>();
    }

    #[test]
    fn completing_keeps_what_is_given_and_can_be_grouped(a in any_name(), b in any_name(), c in any_name()) {
        let both = a.or(&b);
        prop_assert_eq!(both.job.clone(), a.job.clone().or(b.job.clone()));
        prop_assert_eq!(both.task, a.task.or(b.task));
        prop_assert_eq!(both.device.map(|device| device.kind), a.device.or(b.device).map(|device| device.kind));
        prop_assert_eq!(a.or(&a), a.clone());
        prop_assert_eq!(a.or(&DeviceName::default()), a.clone());
        prop_assert_eq!(DeviceName::default().or(&a), a.clone());
        prop_assert_eq!(a.or(&b).or(&c), a.or(&b.or(&c)));
    }
}
