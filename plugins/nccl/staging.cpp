// SPDX-License-Identifier: Apache-2.0
#include "staging.hpp"

#include <cstring>

namespace backplane::nccl {
namespace {

// Does [part, part + size) lie in [whole, whole + of)?
bool within(const std::byte* part, uint64_t size, const std::byte* whole, uint64_t of) {
  return size > 0 && part >= whole && part + size <= whole + of;
}

}  // namespace

Staging::Staging(const Api& api, Pool& pool, bp_op* op, cudaStream_t stream) : api_(api) {
  const uint64_t width = bp_dtype_size(op->dtype);
  const uint64_t in_bytes = op->input.count * width;
  output_bytes_ = op->output.memory == BP_HOST ? op->output.count * width : 0;
  auto* const in = static_cast<std::byte*>(op->input.data);
  auto* const out = static_cast<std::byte*>(op->output.data);
  const bool has_input = in_bytes > 0 && op->input.memory == BP_HOST;
  const bool in_within_out = has_input && within(in, in_bytes, out, output_bytes_);
  const bool out_within_in = has_input && !in_within_out && within(out, output_bytes_, in, in_bytes);
  caller_output_ = out;
  if (output_bytes_ > 0 && !out_within_in) {
    output_ = twin(pool, output_bytes_);
    device_output_ = output_.device.data();
    host_output_ = output_.host.data();
    // What lies between the blocks of an output is the caller's.
    if (in_within_out || op->out_displs != nullptr) copy_in(output_, out, output_bytes_, stream);
  }
  if (in_within_out) {
    op->input.data = device_output_ + (in - out);
  } else if (has_input) {
    input_ = twin(pool, in_bytes);
    copy_in(input_, in, in_bytes, stream);
    op->input.data = input_.device.data();
    if (out_within_in) {
      device_output_ = input_.device.data() + (out - in);
      host_output_ = input_.host.data() + (out - in);
    }
  }
  if (output_bytes_ > 0) op->output.data = device_output_;
}

Staging::Twin Staging::twin(Pool& pool, uint64_t bytes) const {
  return {Piece(pool, bytes), Piece(pool, bytes, Where::kHost)};
}

void Staging::copy_in(const Twin& twin, const void* from, uint64_t bytes, cudaStream_t stream) const {
  std::memcpy(twin.host.data(), from, bytes);
  check(api_, api_.cuda.memcpy_async(twin.device.data(), twin.host.data(), bytes, cudaMemcpyHostToDevice, stream),
        "staging a host buffer");
}

void Staging::bring_back(cudaStream_t stream) {
  if (output_bytes_ == 0) return;
  check(api_, api_.cuda.memcpy_async(host_output_, device_output_, output_bytes_, cudaMemcpyDeviceToHost, stream),
        "bringing back a host buffer");
}

void Staging::finish() const {
  if (output_bytes_ > 0) std::memcpy(caller_output_, host_output_, output_bytes_);
}

}  // namespace backplane::nccl
