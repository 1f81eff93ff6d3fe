//! Tests of `tensors`: what remains of a module when only a part of it is kept on a device.

use super::*;

#[derive(Module, Debug)]
struct Parts {
    trained: Param<Tensor<1>>,
    frozen: Param<Tensor<2>>,
    left_out: Param<Tensor<2>>,
    order: Param<Tensor<1, Int>>,
    mask: Param<Tensor<1, Bool>>,
}

fn parts(device: &Device) -> Parts {
    Parts {
        trained: Param::from_tensor(Tensor::from_data([1.0, 2.0], device)),
        frozen: Param::from_tensor(Tensor::from_data([[3.0, 4.0]], device)).no_grad(),
        left_out: Param::from_tensor(Tensor::from_data([[5.0, 6.0], [7.0, 8.0]], device)),
        order: Param::initialized(burn::module::ParamId::new(), Tensor::from_data([2, 0], device)),
        mask: Param::initialized(burn::module::ParamId::new(), Tensor::from_data([true, false], device)),
    }
}

#[test]
fn a_device_gets_what_is_kept_as_it_was_and_one_value_of_everything_else() {
    let device = Device::flex().autodiff();
    for is_moved in [false, true] {
        let wanted = |index: usize| index < 2;
        let kept = parts(&device).map(&mut Keeper { wanted: &wanted, index: 0, device: &device, is_moved });
        let values = values(&kept, &device);
        assert_eq!(values[..2], [vec![1.0, 2.0], vec![3.0, 4.0]], "{is_moved}");
        assert!(matches!(values[2][..], [value] if value.is_nan()), "{is_moved}");
        assert_eq!(values[3..], [vec![2.0, 0.0], vec![1.0, 0.0]], "{is_moved}");
        let is_trained = [kept.trained.is_require_grad(), kept.frozen.is_require_grad()];
        assert_eq!((is_trained, kept.left_out.is_require_grad()), ([true, false], true), "{is_moved}");
    }
}
