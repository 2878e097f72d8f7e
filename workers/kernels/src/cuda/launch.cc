// Checks what the kernels are given and launches them.

#include <ATen/ATen.h>

#include "millrace-kernels/src/cuda/launch.h"

#include "millrace-kernels/src/cuda/arguments.h"

namespace millrace::cuda {

namespace {

constexpr int kRowWords = sizeof(StepRow) / sizeof(std::int32_t);
// Bytes of shared memory that a block may ask for on every device that has bf16 products.
constexpr std::size_t kMostShared = 96 << 10;

const char* type_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kBFloat16) {
    return "Bf16";
  }
  TORCH_CHECK(x.scalar_type() == at::kFloat, "numbers are f32 or bf16, not ", x.scalar_type());
  return "float";
}

template <typename Argument>
void launch(const at::Tensor& where, Launch how, Argument argument) {
  how.grid[1] = std::max(how.grid[1], 1u);
  how.grid[2] = std::max(how.grid[2], 1u);
  if (where.is_cuda()) {
    launch_on_device(how, &argument);
  } else {
    launch_emulated(how, &argument);
  }
}

void check(const at::Tensor& one, at::IntArrayRef shape, const at::Tensor& like) {
  TORCH_CHECK(one.sizes() == shape, "a tensor of ", one.sizes(), " instead of ", shape);
  TORCH_CHECK(one.is_contiguous() && one.scalar_type() == like.scalar_type() && one.device() == like.device());
}

const void* numbers(const at::Tensor* one, at::IntArrayRef shape, const at::Tensor& like) {
  if (one == nullptr) {
    return nullptr;
  }
  check(*one, shape, like);
  return one->const_data_ptr();
}

const StepRow* step_rows(const at::Tensor& rows, std::int64_t count, const at::Tensor& like) {
  TORCH_CHECK(rows.scalar_type() == at::kInt && rows.is_contiguous() && rows.device() == like.device());
  TORCH_CHECK(rows.dim() == 2 && rows.size(0) == count && rows.size(1) == kRowWords);
  return reinterpret_cast<const StepRow*>(rows.const_data_ptr());
}

} // namespace

void product(
    const at::Tensor* x,
    const at::Tensor* weight,
    const at::Tensor* bias,
    const at::Tensor* onto,
    const at::Tensor* norm,
    double epsilon,
    bool gated,
    const at::Tensor* out) {
  const auto rows = x->size(0), width = x->size(1), columns = out->size(1), all = gated ? 2 * columns : columns;
  check(*x, {rows, width}, *x);
  check(*weight, {all, width}, *x);
  check(*out, {rows, columns}, *x);
  TORCH_CHECK(rows >= 1 && rows <= kMostRows, "rows=", rows, " of a product, of ", kMostRows);
  TORCH_CHECK(width % (16 / x->element_size()) == 0, "width=", width, " is not a multiple of 16 bytes");
  TORCH_CHECK(rows == 1 || rows == 2 || rows == 4, "rows=", rows, " are not 1, 2 or 4");
  const std::size_t shared = rows * width * x->element_size();
  TORCH_CHECK(shared <= kMostShared, "rows of bytes=", shared, " do not fit shared memory");
  constexpr int kWarps = kProductThreads / 32;
  const int warps = columns <= 2048 ? 4 : columns <= 8192 ? 2 : 1;
  const auto instance = std::string("product<") + type_of(*x) + ", " + std::to_string(rows) + (gated ? ", true>" : ", false>");
  const auto blocks = static_cast<unsigned>((columns * warps + kWarps - 1) / kWarps);
  launch(
      *x,
      {instance, "Product", {blocks, 1, 1}, kProductThreads, shared},
      Product{
          x->const_data_ptr(),
          weight->const_data_ptr(),
          numbers(bias, {all}, *x),
          numbers(onto, {rows, columns}, *x),
          numbers(norm, {width}, *x),
          out->mutable_data_ptr(),
          static_cast<float>(epsilon),
          static_cast<int>(width),
          static_cast<int>(columns),
          warps});
}

void attend(
    const at::Tensor* qkv,
    const at::Tensor* keys,
    const at::Tensor* values,
    const at::Tensor* rows,
    const at::Tensor* tables,
    const at::Tensor* query_norm,
    const at::Tensor* key_norm,
    double epsilon,
    const at::Tensor* cos,
    const at::Tensor* sin,
    std::int64_t heads,
    const at::Tensor* parts,
    const at::Tensor* done,
    const at::Tensor* out) {
  const auto count = qkv->size(0), width = out->size(1) / heads, groups = keys->size(1) / width;
  TORCH_CHECK(out->size(1) == heads * width && keys->size(1) == groups * width && heads % groups == 0);
  const auto each = heads / groups;
  check(*qkv, {count, (heads + 2 * groups) * width}, *qkv);
  for (const auto* cached : {keys, values}) {
    check(*cached, {keys->size(0), groups * width}, *qkv);
  }
  check(*out, {count, heads * width}, *qkv);
  TORCH_CHECK(width >= 16 && width <= 256 && (width & (width - 1)) == 0, "heads of width=", width);
  TORCH_CHECK(each <= 8, "query heads of a key head=", each, ", more than 8");
  TORCH_CHECK(tables->scalar_type() == at::kInt && tables->is_contiguous() && tables->dim() == 2 && tables->size(0) == count);
  for (const auto* table : {cos, sin}) {
    TORCH_CHECK(table->scalar_type() == at::kFloat && table->is_contiguous() && table->size(-1) == width);
  }
  const auto splits = parts->size(2);
  TORCH_CHECK(parts->is_contiguous() && parts->scalar_type() == at::kFloat && parts->size(0) >= count);
  TORCH_CHECK(parts->size(1) == groups && parts->size(3) == each && parts->size(4) == width + 2);
  TORCH_CHECK(done->is_contiguous() && done->scalar_type() == at::kInt && done->numel() >= count * groups);
  const auto heads_of = each <= 1 ? 1 : each <= 2 ? 2 : each <= 4 ? 4 : 8;
  const auto instance = std::string("attend<") + type_of(*qkv) + ", " + std::to_string(width) + ", " + std::to_string(heads_of) + ">";
  launch(
      *qkv,
      {instance,
       "Attend",
       {static_cast<unsigned>(splits), static_cast<unsigned>(groups), static_cast<unsigned>(count)},
       kAttendThreads,
       0},
      Attend{
          qkv->const_data_ptr(),
          keys->mutable_data_ptr(),
          values->mutable_data_ptr(),
          step_rows(*rows, count, *qkv),
          tables->const_data_ptr<int>(),
          static_cast<int>(tables->size(1)),
          numbers(query_norm, {width}, *qkv),
          numbers(key_norm, {width}, *qkv),
          static_cast<float>(epsilon),
          cos->const_data_ptr<float>(),
          sin->const_data_ptr<float>(),
          parts->mutable_data_ptr<float>(),
          done->mutable_data_ptr<int>(),
          out->mutable_data_ptr(),
          static_cast<int>(heads),
          static_cast<int>(groups),
          static_cast<int>(splits)});
}

namespace {

void launch_rows(const char* name, const at::Tensor& x, const at::Tensor* weight, double epsilon, const at::Tensor& out) {
  launch(
      x,
      {std::string(name) + "<" + type_of(x) + ">", "Rows", {static_cast<unsigned>(x.size(0)), 1, 1}, kRowThreads, 0},
      Rows{
          x.const_data_ptr(),
          weight == nullptr ? nullptr : weight->const_data_ptr(),
          out.mutable_data_ptr(),
          static_cast<float>(epsilon),
          static_cast<int>(out.size(1))});
}

} // namespace

void normalise(const at::Tensor* x, const at::Tensor* weight, double epsilon, const at::Tensor* out) {
  check(*x, {x->size(0), x->size(1)}, *x);
  check(*weight, {x->size(1)}, *x);
  check(*out, x->sizes(), *x);
  launch_rows("normalise", *x, weight, epsilon, *out);
}

void gate(const at::Tensor* both, const at::Tensor* out) {
  check(*both, {both->size(0), 2 * out->size(1)}, *both);
  check(*out, {both->size(0), out->size(1)}, *both);
  launch_rows("gate", *both, nullptr, 0, *out);
}

void embed(const at::Tensor* table, const at::Tensor* rows, const at::Tensor* out) {
  check(*table, {table->size(0), out->size(1)}, *table);
  check(*out, {rows->size(0), out->size(1)}, *table);
  launch(
      *table,
      {std::string("embed<") + type_of(*table) + ">", "Embed", {static_cast<unsigned>(rows->size(0)), 1, 1}, kRowThreads, 0},
      Embed{
          table->const_data_ptr(),
          step_rows(*rows, rows->size(0), *table),
          out->mutable_data_ptr(),
          static_cast<int>(out->size(1))});
}

void draw(const at::Tensor* logits, const at::Tensor* rows, const at::Tensor* out) {
  check(*logits, {logits->size(0), logits->size(1)}, *logits);
  TORCH_CHECK(out->is_contiguous() && out->scalar_type() == at::kInt && out->size(0) == logits->size(0) && out->size(1) == 2);
  launch(
      *logits,
      {std::string("draw<") + type_of(*logits) + ">", "Draw", {static_cast<unsigned>(logits->size(0)), 1, 1}, kDrawThreads, 0},
      Draw{
          logits->const_data_ptr(),
          step_rows(*rows, logits->size(0), *logits),
          static_cast<Drawn*>(out->mutable_data_ptr()),
          static_cast<int>(logits->size(1))});
}

} // namespace millrace::cuda
