// Norms of heads and rotary embeddings in one pass, with their gradient.

#include <torch/csrc/autograd/custom_function.h>

#include "millrace-kernels/src/training/elementwise.h"
#include "millrace-kernels/src/training/training.h"

namespace millrace::training {

namespace {

// A head is two halves; its rotation is `own * cos + other * sin`, with the sines of the first half
// negated. `which` says which half a word of the result is in.
MILLRACE_PASS(
    millrace_rotate, 5, kWords,
    template <typename T> T millrace_rotate(T first_word, T second_word, T cos_word, T sin_word, T which) {
      auto own = millrace_word(which == 0 ? first_word : second_word);
      auto other = millrace_word(which == 0 ? second_word : first_word);
      auto cos = millrace_word(cos_word), sin = millrace_word(sin_word), out = own;
      for (int i = 0; i < 4; ++i) {
        float by_other = millrace_wide(other.half[i]) * millrace_wide(sin.half[i]);
        out.half[i] = millrace_half(millrace_wide(own.half[i]) * millrace_wide(cos.half[i]) + by_other);
      }
      return out.whole;
    })

// The same of `x * scale * norm`. `scale` holds one f32, and `other_norm` the norm of the other half.
MILLRACE_PASS(
    millrace_turn, 8, kWords,
    template <typename T> T millrace_turn(
        T first_word, T second_word, T cos_word, T sin_word, T scale_word, T norm_word, T other_norm_word, T which) {
      auto own = millrace_word(which == 0 ? first_word : second_word);
      auto other = millrace_word(which == 0 ? second_word : first_word);
      auto cos = millrace_word(cos_word), sin = millrace_word(sin_word), out = own;
      auto norm = millrace_word(norm_word), other_norm = millrace_word(other_norm_word);
      float scale = millrace_word(scale_word).single[0];
      for (int i = 0; i < 4; ++i) {
        float a = millrace_wide(own.half[i]) * scale * millrace_wide(norm.half[i]);
        float b = millrace_wide(other.half[i]) * scale * millrace_wide(other_norm.half[i]);
        out.half[i] = millrace_half(a * millrace_wide(cos.half[i]) + b * millrace_wide(sin.half[i]));
      }
      return out.whole;
    })

// Back through the rotation, which is the rotation by the negative angle, times `x * scale`: what the
// gradient of the norm is the sum of.
MILLRACE_PASS(
    millrace_by_norm, 7, kWords,
    template <typename T> T millrace_by_norm(
        T first_word, T second_word, T x_word, T cos_word, T sin_word, T scale_word, T which) {
      auto own = millrace_word(which == 0 ? first_word : second_word);
      auto other = millrace_word(which == 0 ? second_word : first_word);
      auto x = millrace_word(x_word), cos = millrace_word(cos_word), sin = millrace_word(sin_word), out = own;
      float scale = millrace_word(scale_word).single[0];
      for (int i = 0; i < 4; ++i) {
        float back = millrace_wide(own.half[i]) * millrace_wide(cos.half[i]);
        back -= millrace_wide(other.half[i]) * millrace_wide(sin.half[i]);
        out.half[i] = millrace_half(back * millrace_wide(x.half[i]) * scale);
      }
      return out.whole;
    })

// The gradient by x: `scale * (norm * back - x * scale * mean)`, where the mean is that of `norm * back * x
// * scale` over the head. `scale_word` holds scale and mean.
MILLRACE_PASS(
    millrace_turn_backward, 8, kWords,
    template <typename T> T millrace_turn_backward(
        T first_word, T second_word, T x_word, T cos_word, T sin_word, T scale_word, T norm_word, T which) {
      auto own = millrace_word(which == 0 ? first_word : second_word);
      auto other = millrace_word(which == 0 ? second_word : first_word);
      auto x = millrace_word(x_word), cos = millrace_word(cos_word), sin = millrace_word(sin_word), out = own;
      auto norm = millrace_word(norm_word), row = millrace_word(scale_word);
      float scale = row.single[0], mean = row.single[1];
      for (int i = 0; i < 4; ++i) {
        float back = millrace_wide(own.half[i]) * millrace_wide(cos.half[i]);
        back -= millrace_wide(other.half[i]) * millrace_wide(sin.half[i]);
        out.half[i] = millrace_half(
            scale * (millrace_wide(norm.half[i]) * back - millrace_wide(x.half[i]) * scale * mean));
      }
      return out.whole;
    })

// Words of rows of heads, `[rows, heads, 2, words of a half]`.
struct Words {
  at::Tensor all, first, second;

  Words(const at::Tensor& x, std::int64_t width) {
    const auto flat = words(x);
    all = flat.view({x.size(0), x.size(1) / width, 2, width / 8});
    first = all.narrow(2, 0, 1);
    second = all.narrow(2, 1, 1);
  }
};

// A row's angles, or one norm for all rows: `[rows, 1, 2, words of a half]`.
at::Tensor of_heads(const at::Tensor& x, std::int64_t width) {
  return words(x).view({-1, 1, 2, width / 8});
}

// Two numbers of f32 `[rows, heads]` as one word a head.
at::Tensor pair(const at::Tensor& a, const at::Tensor& b) {
  return at::stack({a, b}, -1).view(at::kLong).unsqueeze(-1);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto width = cos.size(-1);
  const Words in(x, width);
  const auto turned = compute(
      millrace_rotate_pass(), {in.first, in.second, of_heads(cos, width), of_heads(sin, width), halves(in.all)});
  return turned.contiguous().view(at::kBFloat16).view(x.sizes());
}

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    context->save_for_backward({cos, sin});
    return rotate(x, cos, sin);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {rotate(gradients[0].contiguous(), saved[0], saved[1].neg()), {}, {}};
  }
};

struct Turn : torch::autograd::Function<Turn> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& norm,
      double epsilon,
      const at::Tensor& cos,
      const at::Tensor& sin) {
    const auto width = cos.size(-1);
    const auto heads = x.detach().view({x.size(0), -1, width});
    const auto scale = at::linalg_vector_norm(heads, 2, at::IntArrayRef{-1}, false, at::kFloat)
                           .square_().div_(static_cast<double>(width)).add_(epsilon).rsqrt_();
    context->save_for_backward({x, norm, cos, sin, scale});
    const Words in(x, width);
    const auto other_norm = norm.detach().roll({width / 2}, {0});
    const auto turned = compute(
        millrace_turn_pass(),
        {in.first, in.second, of_heads(cos, width), of_heads(sin, width), pair(scale, scale), of_heads(norm, width),
         of_heads(other_norm, width), halves(in.all)});
    return turned.contiguous().view(at::kBFloat16).view(x.sizes());
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &norm = saved[1], &scale = saved[4];
    const auto width = saved[2].size(-1);
    const auto cos = of_heads(saved[2], width), sin = of_heads(saved[3], width);
    const Words back(gradients[0].contiguous(), width), in(x, width);
    const auto which = halves(in.all);
    const auto by_norm =
        compute(millrace_by_norm_pass(), {back.first, back.second, in.all, cos, sin, pair(scale, scale), which})
            .contiguous().view(at::kBFloat16).view({-1, width});
    const auto mean = by_norm.matmul(norm.detach()).to(at::kFloat).div_(static_cast<double>(width)).view_as(scale);
    const auto by_x = compute(
        millrace_turn_backward_pass(),
        {back.first, back.second, in.all, cos, sin, pair(scale, mean), of_heads(norm, width), which});
    return {
        by_x.contiguous().view(at::kBFloat16).view(x.sizes()),
        by_norm.sum(at::IntArrayRef{0}, false, at::kFloat).to(norm.scalar_type()), {}, {}, {}};
  }
};

} // namespace

at::Tensor* turn_heads(
    const at::Tensor* x, const at::Tensor* norm, double epsilon, const at::Tensor* cos, const at::Tensor* sin) {
  const auto width = cos->size(-1);
  TORCH_CHECK(x->dim() == 2 && x->stride(1) == 1 && x->size(1) % width == 0 && width % 8 == 0, "not whole heads");
  for (const auto* angles : {cos, sin}) {
    TORCH_CHECK(angles->is_contiguous() && angles->numel() == x->size(0) * width);
    TORCH_CHECK(angles->scalar_type() == at::kBFloat16 && x->scalar_type() == at::kBFloat16);
  }
  if (norm == nullptr) {
    return new at::Tensor(Rotate::apply(*x, *cos, *sin));
  }
  TORCH_CHECK(norm->is_contiguous() && norm->numel() == width && norm->scalar_type() == at::kBFloat16);
  return new at::Tensor(Turn::apply(*x, *norm, epsilon, *cos, *sin));
}

} // namespace millrace::training
