// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>
#include <gloo/types.h>

#include <bit>
#include <cstring>
#include <vector>

#include "backplane/base/op_digest.hpp"
#include "blocks.hpp"
#include "reductions.hpp"

namespace backplane::gloo {
namespace {

// Up to this size the single step of the direct exchange is the fastest, although it moves W/2 times as many bytes
// among W ranks.
constexpr uint64_t kDirectLimit = uint64_t{128} * 1024;  // bytes sent per rank

// Up to this size bcube's 2*log2(W) steps beat the ring's 2*(W-1) steps with the same volume. Above it, among 2 and 4
// ranks, they tie or the ring wins (share/doc/performance.md).
constexpr uint64_t kBcubeLimit = uint64_t{1} << 20;  // bytes

// gloo derives the element size from a type.
template <size_t Size>
struct Element {
  char bytes[Size];
};

template <typename T, typename Options>
void set_typed(Options& options, void* input, void* output, size_t count) {
  if (input != nullptr) options.setInput(static_cast<T*>(input), count);
  options.setOutput(static_cast<T*>(output), count);
}

template <typename Options>
void set_buffers(Options& options, uint32_t dtype, void* input, void* output, size_t count) {
  switch (bp_dtype_size(dtype)) {
    case 1:
      return set_typed<Element<1>>(options, input, output, count);
    case 2:
      return set_typed<Element<2>>(options, input, output, count);
    case 4:
      return set_typed<Element<4>>(options, input, output, count);
    case 8:
      return set_typed<Element<8>>(options, input, output, count);
    default:
      return set_typed<Element<16>>(options, input, output, count);
  }
}

// Ranks with different operations must not match each other's messages, nor ranks that select different algorithms
// because their counts differ. gloo's tags have 32 bits: 16 of the number, which distinguish the operations in flight,
// and 16 of the digest.
uint32_t tag_of(const bp_op& op, Algorithm algorithm = Algorithm::kAuto) {
  const uint32_t digest = base::digest_of(op).value() + static_cast<uint32_t>(algorithm);
  return digest << 16 | (static_cast<uint32_t>(op.seq) & 0xffff);
}

uint64_t bytes_of(const bp_op& op, const bp_buffer& buffer) { return buffer.count * bp_dtype_size(op.dtype); }

char* bytes_at(const bp_buffer& buffer) { return static_cast<char*>(buffer.data); }

}  // namespace

Collectives::Collectives(std::shared_ptr<::gloo::Context> mesh, const sdk::Host& host, Algorithm algorithm)
    : mesh_(std::move(mesh)), host_(host), algorithm_(algorithm) {}

void Collectives::run(const bp_op& op) {
  switch (op.kind) {
    case BP_BARRIER:
      return barrier(op);
    case BP_BROADCAST:
      return broadcast(op);
    case BP_REDUCE:
      return reduce(op);
    case BP_ALL_REDUCE:
      return all_reduce(op);
    case BP_GATHER:
      return gather(op);
    case BP_SCATTER:
      return scatter(op);
    case BP_ALL_GATHER:
      return all_gather(op);
    case BP_ALL_GATHERV:
      return all_gatherv(op);
    case BP_ALL_TO_ALL:
      return all_to_all(op);
    case BP_ALL_TO_ALLV:
      return all_to_allv(op);
    default:
      throw sdk::Failure(BP_UNSUPPORTED, "gloo has no native operation of kind " + std::to_string(op.kind));
  }
}

void Collectives::barrier(const bp_op& op) {
  ::gloo::BarrierOptions options(mesh_);
  options.setTag(tag_of(op));
  ::gloo::barrier(options);
}

void Collectives::broadcast(const bp_op& op) {
  ::gloo::BroadcastOptions options(mesh_);
  options.setOutput(bytes_at(op.output), bytes_of(op, op.output));
  options.setRoot(op.root);
  options.setTag(tag_of(op));
  ::gloo::broadcast(options);
}

// gloo's ring uses the output buffer of every rank.
void Collectives::reduce(const bp_op& op) {
  std::unique_ptr<char[]> scratch;
  void* output = op.output.data;
  if (mesh_->rank != op.root) {
    scratch.reset(new char[bytes_of(op, op.input)]);
    output = scratch.get();
  }
  ::gloo::ReduceOptions options(mesh_);
  set_buffers(options, op.dtype, output == op.input.data ? nullptr : op.input.data, output, op.input.count);
  options.setReduceFunction(reduction(host_, op.dtype, op.reduce_op));
  options.setRoot(op.root);
  options.setTag(tag_of(op));
  ::gloo::reduce(options);
}

// Depends only on values that are equal on all ranks.
Algorithm Collectives::choose(uint64_t bytes) const {
  if (algorithm_ != Algorithm::kAuto) return algorithm_;
  if (bytes * static_cast<unsigned>(mesh_->size - 1) <= kDirectLimit) return Algorithm::kDirect;
  const bool few_steps = std::has_single_bit(static_cast<unsigned>(mesh_->size)) && bytes <= kBcubeLimit;
  return few_steps ? Algorithm::kBcube : Algorithm::kRing;
}

void Collectives::all_reduce(const bp_op& op) {
  using Kind = ::gloo::AllreduceOptions::Algorithm;
  const Algorithm algorithm = choose(bytes_of(op, op.input));
  if (algorithm == Algorithm::kDirect) return all_reduce_directly(op);
  ::gloo::AllreduceOptions options(mesh_);
  set_buffers(options, op.dtype, op.output.data == op.input.data ? nullptr : op.input.data, op.output.data,
              op.output.count);
  options.setAlgorithm(algorithm == Algorithm::kBcube ? Kind::BCUBE : Kind::RING);
  options.setReduceFunction(reduction(host_, op.dtype, op.reduce_op));
  options.setTag(tag_of(op, algorithm));
  ::gloo::allreduce(options);
}

void Collectives::all_reduce_directly(const bp_op& op) {
  const uint64_t bytes = bytes_of(op, op.input);
  const auto world = static_cast<uint64_t>(mesh_->size);
  const auto rank = static_cast<uint64_t>(mesh_->rank);
  const uint64_t slot = ::gloo::Slot::build(::gloo::kAllreduceSlotPrefix, tag_of(op, Algorithm::kDirect));
  const std::unique_ptr<char[]> blocks(new char[bytes * world]);  // the input of each rank
  const auto mine = mesh_->createUnboundBuffer(op.input.data, bytes);
  const auto all = mesh_->createUnboundBuffer(blocks.get(), bytes * world);
  for (uint64_t step = 1; step < world; ++step) {
    const uint64_t peer = (rank + step) % world;
    all->recv(static_cast<int>(peer), slot, peer * bytes, bytes);
    mine->send(static_cast<int>(peer), slot, 0, bytes);
  }
  std::memcpy(&blocks[rank * bytes], op.input.data, bytes);
  for (uint64_t step = 1; step < world; ++step) {
    all->waitRecv();
    mine->waitSend();
  }
  const Reduction combine = reduction(host_, op.dtype, op.reduce_op);
  combine(op.output.data, &blocks[0], &blocks[bytes], op.input.count);
  for (uint64_t peer = 2; peer < world; ++peer) {
    combine(op.output.data, op.output.data, &blocks[peer * bytes], op.input.count);
  }
}

void Collectives::gather(const bp_op& op) {
  ::gloo::GatherOptions options(mesh_);
  options.setInput(bytes_at(op.input), bytes_of(op, op.input));
  if (mesh_->rank == op.root) options.setOutput(bytes_at(op.output), bytes_of(op, op.output));
  options.setRoot(op.root);
  options.setTag(tag_of(op));
  ::gloo::gather(options);
}

void Collectives::scatter(const bp_op& op) {
  const uint64_t block = bytes_of(op, op.output);
  ::gloo::ScatterOptions options(mesh_);
  if (mesh_->rank == op.root) {
    std::vector<char*> blocks;
    for (int rank = 0; rank < mesh_->size; ++rank) {
      blocks.push_back(bytes_at(op.input) + static_cast<uint64_t>(rank) * block);
    }
    options.setInputs(blocks, block);
  }
  options.setOutput(bytes_at(op.output), block);
  options.setRoot(op.root);
  options.setTag(tag_of(op));
  ::gloo::scatter(options);
}

void Collectives::all_gather(const bp_op& op) {
  const uint64_t block = bytes_of(op, op.input);
  ::gloo::AllgatherOptions options(mesh_);
  const bool in_place = bytes_at(op.input) == bytes_at(op.output) + static_cast<uint64_t>(mesh_->rank) * block;
  if (!in_place) options.setInput(bytes_at(op.input), block);
  options.setOutput(bytes_at(op.output), bytes_of(op, op.output));
  options.setTag(tag_of(op));
  ::gloo::allgather(options);
}

void Collectives::all_gatherv(const bp_op& op) {
  const Blocks blocks(op.out_counts, op.out_displs, mesh_->size, bp_dtype_size(op.dtype));
  ContiguousBlocks packed(blocks, op.output.data);
  const auto rank = static_cast<size_t>(mesh_->rank);
  const bool in_place = packed.is_direct() && bytes_at(op.input) == bytes_at(op.output) + blocks.offset(rank);
  ::gloo::AllgathervOptions options(mesh_);
  if (!in_place) options.setInput(bytes_at(op.input), blocks.bytes(rank));
  options.setOutput(packed.data(), blocks.sizes<size_t>());
  options.setTag(tag_of(op));
  ::gloo::allgatherv(options);
  packed.unpack();
}

// gloo would receive into blocks that it has not sent yet, so an operation in place needs a copy.
void Collectives::all_to_all(const bp_op& op) {
  const uint64_t bytes = bytes_of(op, op.input);
  std::unique_ptr<char[]> copy;
  char* input = bytes_at(op.input);
  if (op.output.data == op.input.data) {
    copy.reset(new char[bytes]);
    std::memcpy(copy.get(), input, bytes);
    input = copy.get();
  }
  ::gloo::AlltoallOptions options(mesh_);
  options.setInput(input, bytes);
  options.setOutput(bytes_at(op.output), bytes);
  options.setTag(tag_of(op));
  ::gloo::alltoall(options);
}

void Collectives::all_to_allv(const bp_op& op) {
  const uint64_t element = bp_dtype_size(op.dtype);
  const Blocks in(op.in_counts, op.in_displs, mesh_->size, element);
  const Blocks out(op.out_counts, op.out_displs, mesh_->size, element);
  ContiguousBlocks input(in, op.input.data, op.output.data == op.input.data);
  ContiguousBlocks output(out, op.output.data);
  input.pack();
  ::gloo::AlltoallvOptions options(mesh_);
  options.setInput(input.data(), in.sizes<int64_t>());
  options.setOutput(output.data(), out.sizes<int64_t>());
  options.setTag(tag_of(op));
  ::gloo::alltoallv(options);
  output.unpack();
}

bool is_empty(const bp_op& op, int world_size) {
  switch (op.kind) {
    case BP_BARRIER:
    case BP_ALL_TO_ALLV:  // counts of other ranks are unknown here
      return false;
    case BP_ALL_GATHERV:
      for (int rank = 0; rank < world_size; ++rank) {
        if (op.out_counts[rank] > 0) return false;
      }
      return true;
    case BP_BROADCAST:
    case BP_SCATTER:
      return op.output.count == 0;
    default:
      return op.input.count == 0;
  }
}

void run_alone(const bp_op& op) {
  const uint64_t element = bp_dtype_size(op.dtype);
  uint64_t bytes = op.output.count * element;
  char* from = bytes_at(op.input);
  char* to = bytes_at(op.output);
  if (op.kind == BP_BARRIER || op.kind == BP_BROADCAST) return;
  if (op.kind == BP_ALL_TO_ALLV) from += op.in_displs[0] * element;
  if (op.kind == BP_ALL_TO_ALLV || op.kind == BP_ALL_GATHERV) {
    to += op.out_displs[0] * element;
    bytes = op.out_counts[0] * element;
  }
  if (bytes > 0 && from != to) std::memmove(to, from, bytes);
}

}  // namespace backplane::gloo
