// SPDX-License-Identifier: Apache-2.0
#include "staging.hpp"

namespace backplane::nccl {
namespace {

// Does [part, part + size) lie in [whole, whole + of)?
bool within(const std::byte* part, uint64_t size, const std::byte* whole, uint64_t of) {
  return size > 0 && part >= whole && part + size <= whole + of;
}

}  // namespace

Staging::Staging(const Api& api, DevicePool& pool, bp_op* op, cudaStream_t stream) : api_(api) {
  const uint64_t width = bp_dtype_size(op->dtype);
  const uint64_t in_bytes = op->input.count * width;
  output_bytes_ = op->output.count * width;
  auto* const in = static_cast<std::byte*>(op->input.data);
  auto* const out = static_cast<std::byte*>(op->output.data);
  const bool has_input = in_bytes > 0 && op->input.memory == BP_HOST;
  const bool has_output = output_bytes_ > 0 && op->output.memory == BP_HOST;
  if (!has_output) output_bytes_ = 0;
  if (!has_input && !has_output) return;
  const bool in_within_out = has_input && has_output && within(in, in_bytes, out, output_bytes_);
  const bool out_within_in = has_input && has_output && !in_within_out && within(out, output_bytes_, in, in_bytes);
  if (has_output && !out_within_in) {
    output_ = DeviceBuffer(pool, output_bytes_);
    device_output_ = output_.data();
    // What lies between the blocks of an output is the caller's.
    if (in_within_out || op->out_displs != nullptr)
      copy(device_output_, out, output_bytes_, cudaMemcpyHostToDevice, stream);
  }
  if (in_within_out) {
    op->input.data = output_.data() + (in - out);
  } else if (has_input) {
    input_ = DeviceBuffer(pool, in_bytes);
    copy(input_.data(), in, in_bytes, cudaMemcpyHostToDevice, stream);
    op->input.data = input_.data();
    if (out_within_in) device_output_ = input_.data() + (out - in);
  }
  host_output_ = out;
  if (has_output) op->output.data = device_output_;
}

void Staging::bring_back(cudaStream_t stream) {
  if (output_bytes_ > 0) copy(host_output_, device_output_, output_bytes_, cudaMemcpyDeviceToHost, stream);
}

void Staging::copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind, cudaStream_t stream) const {
  check(api_, api_.cuda.memcpy_async(to, from, bytes, kind, stream), "staging a host buffer");
}

}  // namespace backplane::nccl
