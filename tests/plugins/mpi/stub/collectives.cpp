// SPDX-License-Identifier: Apache-2.0
//
// Collectives: each rank sends all that others need at once, and is complete once it has what it needs. Compiled twice:
// large_counts.cpp makes the functions with the suffix _c.
#include <cstring>

#include "commands.hpp"

#ifndef STUB_SUFFIXED
#define STUB_SUFFIXED(name) name
using Count = int;
#endif
#define STUB_TEXT(name) #name
#define STUB_TEXT_OF(name) STUB_TEXT(name)
// The definition of an exported function, and its name.
#define MPI_FUNCTION(name) __attribute__((visibility("default"))) int STUB_SUFFIXED(name)
#define MPI_NAME(name) STUB_TEXT_OF(STUB_SUFFIXED(name))

using namespace stub;

namespace {

// The blocks of a buffer, one per rank.
struct Layout {
  std::function<size_t(int)> offset;  // in bytes, like size
  std::function<size_t(int)> size;
  std::vector<std::pair<const void*, size_t>> numbers = {};  // arrays, and the size of their elements
};

template <typename Number>
Layout equal(Number count, Handle type) {
  const size_t bytes = static_cast<size_t>(count) * size_of(type);
  return {[bytes](int rank) { return static_cast<size_t>(rank) * bytes; }, [bytes](int /*rank*/) { return bytes; }};
}
template <typename Number>
Layout blocks(const Number* counts, const Number* displs, Handle type) {
  const size_t unit = size_of(type);
  return {[displs, unit](int rank) { return static_cast<size_t>(displs[rank]) * unit; },
          [counts, unit](int rank) { return static_cast<size_t>(counts[rank]) * unit; },
          {{counts, sizeof(Number)}, {displs, sizeof(Number)}}};
}

const std::byte* at(const void* data, size_t offset) { return static_cast<const std::byte*>(data) + offset; }
std::byte* at(void* data, size_t offset) { return static_cast<std::byte*>(data) + offset; }

int ranks(const Request& r) { return r.comm->size(); }
bool is_root(const Request& r, int root) { return r.comm->rank == root; }

int check(const Request& r, Handle type, int root = 0) {
  if (size_of(type) == 0) return kBadType;
  return root >= 0 && root < ranks(r) ? kSuccess : kBadRank;
}

void send_to_all(Request& r, const void* data, size_t bytes) {
  for (int rank = 0; rank < ranks(r); ++rank) r.send(rank, data, bytes);
}
void use_numbers(Request& r, const Layout& layout) {
  for (const auto& [array, element] : layout.numbers) {
    r.numbers.emplace_back(array, element * static_cast<size_t>(ranks(r)));
  }
}
void send_blocks(Request& r, const void* data, const Layout& layout) {
  use_numbers(r, layout);
  for (int rank = 0; rank < ranks(r); ++rank) r.send(rank, at(data, layout.offset(rank)), layout.size(rank));
}
void receive_blocks(Request& r, void* data, const Layout& layout) {
  use_numbers(r, layout);
  for (int rank = 0; rank < ranks(r); ++rank) r.receive(rank, at(data, layout.offset(rank)), layout.size(rank));
}

// Receives `bytes` from all and combines them into `out`, in the order of ranks.
void reduce_into(Request& r, void* out, size_t bytes, Handle type, Handle op) {
  for (int rank = 0; rank < ranks(r); ++rank) r.receive(rank, rank == 0 ? out : nullptr, bytes);
  r.finish = [out, bytes, type, op](const std::vector<Bytes>& packets) {
    const size_t count = bytes / size_of(type);
    for (size_t i = 1; i < packets.size(); ++i) combine(type, op, out, packets[i].data(), count);
  };
}

int check_reduction(const Request& r, Handle type, Handle op, int root = 0) {
  const int code = check(r, type, root);
  return code != kSuccess || has_operation(type, op) ? code : kBadOp;
}

// `in_blocks` are those that this rank sends, `out_blocks` those that it receives.
int gather(const char* function, const void* in, size_t in_bytes, Handle type, void* out, const Layout& out_blocks,
           int root, Handle comm, Handle* request) {
  return begin(function, comm, -1, request, [&](Request& r) {
    if (const int code = check(r, type, root); code != kSuccess) return code;
    r.send(root, in, in_bytes);
    if (is_root(r, root)) receive_blocks(r, out, out_blocks);
    return static_cast<int>(kSuccess);
  });
}

int scatter(const char* function, const void* in, const Layout& in_blocks, Handle type, void* out, size_t out_bytes,
            int root, Handle comm, Handle* request) {
  return begin(function, comm, -1, request, [&](Request& r) {
    if (const int code = check(r, type, root); code != kSuccess) return code;
    if (is_root(r, root)) send_blocks(r, in, in_blocks);
    r.receive(root, out, out_bytes);
    return static_cast<int>(kSuccess);
  });
}

int all_gather(const char* function, const void* in, size_t in_bytes, Handle type, void* out, const Layout& out_blocks,
               Handle comm, Handle* request) {
  return begin(function, comm, -1, request, [&](Request& r) {
    if (const int code = check(r, type); code != kSuccess) return code;
    send_to_all(r, in, in_bytes);
    receive_blocks(r, out, out_blocks);
    return static_cast<int>(kSuccess);
  });
}

int all_to_all(const char* function, const void* in, const Layout& in_blocks, Handle type, void* out,
               const Layout& out_blocks, Handle comm, Handle* request) {
  return begin(function, comm, -1, request, [&](Request& r) {
    if (const int code = check(r, type); code != kSuccess) return code;
    send_blocks(r, in, in_blocks);
    receive_blocks(r, out, out_blocks);
    return static_cast<int>(kSuccess);
  });
}

int broadcast(const char* function, void* data, size_t bytes, Handle type, int root, Handle comm, Handle* request) {
  return begin(function, comm, -1, request, [&](Request& r) {
    if (const int code = check(r, type, root); code != kSuccess) return code;
    for (int rank = 0; is_root(r, root) && rank < ranks(r); ++rank) {
      if (rank != root) r.send(rank, data, bytes);
    }
    if (!is_root(r, root)) r.receive(root, data, bytes);
    return static_cast<int>(kSuccess);
  });
}

int reduce(const char* function, const void* in, void* out, size_t bytes, Handle type, Handle op, int root, Handle comm,
           Handle* request) {
  return begin(function, comm, -1, request, [&](Request& r) {
    if (const int code = check_reduction(r, type, op, root); code != kSuccess) return code;
    r.send(root, in, bytes);
    if (is_root(r, root)) reduce_into(r, out, bytes, type, op);
    return static_cast<int>(kSuccess);
  });
}

int all_reduce(const char* function, const void* in, void* out, size_t bytes, Handle type, Handle op, Handle comm,
               Handle* request) {
  return begin(function, comm, -1, request, [&](Request& r) {
    if (const int code = check_reduction(r, type, op); code != kSuccess) return code;
    send_to_all(r, value_of(in) == kInPlace ? out : in, bytes);
    reduce_into(r, out, bytes, type, op);
    return static_cast<int>(kSuccess);
  });
}

// Rank r gets `bytes_of(r)`; the blocks of `in` follow each other.
int reduce_scatter(const char* function, const void* in, void* out, const std::function<size_t(int)>& bytes_of,
                   Handle type, Handle op, Handle comm, Handle* request) {
  return begin(function, comm, -1, request, [&](Request& r) {
    if (const int code = check_reduction(r, type, op); code != kSuccess) return code;
    size_t offset = 0;
    for (int rank = 0; rank < ranks(r); ++rank) {
      r.send(rank, at(in, offset), bytes_of(rank));
      offset += bytes_of(rank);
    }
    reduce_into(r, out, bytes_of(r.comm->rank), type, op);
    return static_cast<int>(kSuccess);
  });
}

template <typename Number>
size_t bytes(Number count, Handle type) {
  return static_cast<size_t>(count) * size_of(type);
}

}  // namespace

extern "C" {

MPI_FUNCTION(MPI_Ibcast)(void* data, Count count, Handle type, int root, Handle comm, Handle* request) {
  return broadcast(MPI_NAME(MPI_Ibcast), data, bytes(count, type), type, root, comm, request);
}

MPI_FUNCTION(MPI_Ireduce)
(const void* in, void* out, Count count, Handle type, Handle op, int root, Handle comm, Handle* request) {
  return reduce(MPI_NAME(MPI_Ireduce), in, out, bytes(count, type), type, op, root, comm, request);
}

MPI_FUNCTION(MPI_Iallreduce)
(const void* in, void* out, Count count, Handle type, Handle op, Handle comm, Handle* request) {
  return all_reduce(MPI_NAME(MPI_Iallreduce), in, out, bytes(count, type), type, op, comm, request);
}

MPI_FUNCTION(MPI_Igather)
(const void* in, Count in_count, Handle type, void* out, Count out_count, Handle out_type, int root, Handle comm,
 Handle* request) {
  return gather(MPI_NAME(MPI_Igather), in, bytes(in_count, type), type, out, equal(out_count, out_type), root, comm,
                request);
}

MPI_FUNCTION(MPI_Igatherv)
(const void* in, Count in_count, Handle type, void* out, const Count* counts, const Count* displs, Handle out_type,
 int root, Handle comm, Handle* request) {
  return gather(MPI_NAME(MPI_Igatherv), in, bytes(in_count, type), type, out, blocks(counts, displs, out_type), root,
                comm, request);
}

MPI_FUNCTION(MPI_Iscatter)
(const void* in, Count in_count, Handle type, void* out, Count out_count, Handle out_type, int root, Handle comm,
 Handle* request) {
  return scatter(MPI_NAME(MPI_Iscatter), in, equal(in_count, type), type, out, bytes(out_count, out_type), root, comm,
                 request);
}

MPI_FUNCTION(MPI_Iscatterv)
(const void* in, const Count* counts, const Count* displs, Handle type, void* out, Count out_count, Handle out_type,
 int root, Handle comm, Handle* request) {
  return scatter(MPI_NAME(MPI_Iscatterv), in, blocks(counts, displs, type), type, out, bytes(out_count, out_type), root,
                 comm, request);
}

MPI_FUNCTION(MPI_Iallgather)
(const void* in, Count in_count, Handle type, void* out, Count out_count, Handle out_type, Handle comm,
 Handle* request) {
  return all_gather(MPI_NAME(MPI_Iallgather), in, bytes(in_count, type), type, out, equal(out_count, out_type), comm,
                    request);
}

MPI_FUNCTION(MPI_Iallgatherv)
(const void* in, Count in_count, Handle type, void* out, const Count* counts, const Count* displs, Handle out_type,
 Handle comm, Handle* request) {
  return all_gather(MPI_NAME(MPI_Iallgatherv), in, bytes(in_count, type), type, out, blocks(counts, displs, out_type),
                    comm, request);
}

MPI_FUNCTION(MPI_Ireduce_scatter_block)
(const void* in, void* out, Count count, Handle type, Handle op, Handle comm, Handle* request) {
  return reduce_scatter(
      MPI_NAME(MPI_Ireduce_scatter_block), in, out, [=](int /*rank*/) { return bytes(count, type); }, type, op, comm,
      request);
}

MPI_FUNCTION(MPI_Ireduce_scatter)
(const void* in, void* out, const Count* counts, Handle type, Handle op, Handle comm, Handle* request) {
  return reduce_scatter(
      MPI_NAME(MPI_Ireduce_scatter), in, out, [=](int rank) { return bytes(counts[rank], type); }, type, op, comm,
      request);
}

MPI_FUNCTION(MPI_Ialltoall)
(const void* in, Count in_count, Handle type, void* out, Count out_count, Handle out_type, Handle comm,
 Handle* request) {
  return all_to_all(MPI_NAME(MPI_Ialltoall), in, equal(in_count, type), type, out, equal(out_count, out_type), comm,
                    request);
}

MPI_FUNCTION(MPI_Ialltoallv)
(const void* in, const Count* in_counts, const Count* in_displs, Handle type, void* out, const Count* out_counts,
 const Count* out_displs, Handle out_type, Handle comm, Handle* request) {
  return all_to_all(MPI_NAME(MPI_Ialltoallv), in, blocks(in_counts, in_displs, type), type, out,
                    blocks(out_counts, out_displs, out_type), comm, request);
}
}
