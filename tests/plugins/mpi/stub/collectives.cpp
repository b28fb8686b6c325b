// SPDX-License-Identifier: Apache-2.0
//
// Collectives: each rank sends all that others need at once, and is complete once it has what it needs.
#include <cstring>

#include "commands.hpp"

#define MPI_FUNCTION __attribute__((visibility("default"))) int

using namespace stub;

namespace {

// The blocks of a buffer, one per rank.
struct Layout {
  std::function<size_t(int)> offset;  // in bytes, like size
  std::function<size_t(int)> size;
  std::vector<std::pair<const void*, size_t>> numbers = {};  // arrays, and the size of their elements
};

template <typename Count>
Layout equal(Count count, Handle type) {
  const size_t bytes = static_cast<size_t>(count) * size_of(type);
  return {[bytes](int rank) { return static_cast<size_t>(rank) * bytes; }, [bytes](int /*rank*/) { return bytes; }};
}
template <typename Count, typename Displacement>
Layout blocks(const Count* counts, const Displacement* displs, Handle type) {
  const size_t unit = size_of(type);
  return {[displs, unit](int rank) { return static_cast<size_t>(displs[rank]) * unit; },
          [counts, unit](int rank) { return static_cast<size_t>(counts[rank]) * unit; },
          {{counts, sizeof(Count)}, {displs, sizeof(Displacement)}}};
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

template <typename Count>
size_t bytes(Count count, Handle type) {
  return static_cast<size_t>(count) * size_of(type);
}

}  // namespace

extern "C" {

MPI_FUNCTION MPI_Ibarrier(Handle comm, Handle* request) {
  return begin("MPI_Ibarrier", comm, -1, request, [](Request& r) {
    send_to_all(r, nullptr, 0);
    for (int rank = 0; rank < ranks(r); ++rank) r.receive(rank, nullptr, 0);
    return kSuccess;
  });
}

MPI_FUNCTION MPI_Ibcast(void* data, int count, Handle type, int root, Handle comm, Handle* request) {
  return broadcast("MPI_Ibcast", data, bytes(count, type), type, root, comm, request);
}

MPI_FUNCTION MPI_Ireduce(const void* in, void* out, int count, Handle type, Handle op, int root, Handle comm,
                         Handle* request) {
  return reduce("MPI_Ireduce", in, out, bytes(count, type), type, op, root, comm, request);
}

MPI_FUNCTION MPI_Iallreduce(const void* in, void* out, int count, Handle type, Handle op, Handle comm,
                            Handle* request) {
  return all_reduce("MPI_Iallreduce", in, out, bytes(count, type), type, op, comm, request);
}

MPI_FUNCTION MPI_Igather(const void* in, int in_count, Handle type, void* out, int out_count, Handle out_type, int root,
                         Handle comm, Handle* request) {
  return gather("MPI_Igather", in, bytes(in_count, type), type, out, equal(out_count, out_type), root, comm, request);
}

MPI_FUNCTION MPI_Igatherv(const void* in, int in_count, Handle type, void* out, const int* counts, const int* displs,
                          Handle out_type, int root, Handle comm, Handle* request) {
  return gather("MPI_Igatherv", in, bytes(in_count, type), type, out, blocks(counts, displs, out_type), root, comm,
                request);
}

MPI_FUNCTION MPI_Iscatter(const void* in, int in_count, Handle type, void* out, int out_count, Handle out_type,
                          int root, Handle comm, Handle* request) {
  return scatter("MPI_Iscatter", in, equal(in_count, type), type, out, bytes(out_count, out_type), root, comm, request);
}

MPI_FUNCTION MPI_Iscatterv(const void* in, const int* counts, const int* displs, Handle type, void* out, int out_count,
                           Handle out_type, int root, Handle comm, Handle* request) {
  return scatter("MPI_Iscatterv", in, blocks(counts, displs, type), type, out, bytes(out_count, out_type), root, comm,
                 request);
}

MPI_FUNCTION MPI_Iallgather(const void* in, int in_count, Handle type, void* out, int out_count, Handle out_type,
                            Handle comm, Handle* request) {
  return all_gather("MPI_Iallgather", in, bytes(in_count, type), type, out, equal(out_count, out_type), comm, request);
}

MPI_FUNCTION MPI_Iallgatherv(const void* in, int in_count, Handle type, void* out, const int* counts, const int* displs,
                             Handle out_type, Handle comm, Handle* request) {
  return all_gather("MPI_Iallgatherv", in, bytes(in_count, type), type, out, blocks(counts, displs, out_type), comm,
                    request);
}

MPI_FUNCTION MPI_Ireduce_scatter_block(const void* in, void* out, int count, Handle type, Handle op, Handle comm,
                                       Handle* request) {
  return reduce_scatter(
      "MPI_Ireduce_scatter_block", in, out, [=](int /*rank*/) { return bytes(count, type); }, type, op, comm, request);
}

MPI_FUNCTION MPI_Ireduce_scatter(const void* in, void* out, const int* counts, Handle type, Handle op, Handle comm,
                                 Handle* request) {
  return reduce_scatter(
      "MPI_Ireduce_scatter", in, out, [=](int rank) { return bytes(counts[rank], type); }, type, op, comm, request);
}

MPI_FUNCTION MPI_Ialltoall(const void* in, int in_count, Handle type, void* out, int out_count, Handle out_type,
                           Handle comm, Handle* request) {
  return all_to_all("MPI_Ialltoall", in, equal(in_count, type), type, out, equal(out_count, out_type), comm, request);
}

MPI_FUNCTION MPI_Ialltoallv(const void* in, const int* in_counts, const int* in_displs, Handle type, void* out,
                            const int* out_counts, const int* out_displs, Handle out_type, Handle comm,
                            Handle* request) {
  return all_to_all("MPI_Ialltoallv", in, blocks(in_counts, in_displs, type), type, out,
                    blocks(out_counts, out_displs, out_type), comm, request);
}
}
