// SPDX-License-Identifier: Apache-2.0
//
// The functions of an MPI library, whatever its ABI. All of them may be called from any thread. Errors of MPI are
// thrown as sdk::Failure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "abi.hpp"
#include "library.hpp"

namespace backplane::mpi {

// Handles of any ABI. 0 is none.
enum class Comm : uintptr_t {};
enum class Request : uintptr_t {};
enum class Message : uintptr_t {};

struct Envelope {
  int source = -1;
  int tag = 0;
  uint64_t bytes = 0;
};

constexpr int kAnySource = -1;
constexpr int kAnyTag = -1;

// Counts and displacements of the blocks of v-forms, per rank, in elements. MPI reads them until the request is
// complete.
struct Blocks {
  using Numbers = std::vector<int64_t>;
  Numbers in_counts;
  Numbers in_displs;
  Numbers out_counts;
  Numbers out_displs;
  std::array<std::vector<int>, 4> narrow;  // the same as int, set by Api::start where the function takes those
};

// The end of the last block, in elements.
inline uint64_t end_of(const Blocks::Numbers& counts, const Blocks::Numbers& displs) {
  int64_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i) end = std::max(end, displs[i] + counts[i]);
  return static_cast<uint64_t>(end);
}

// The arguments of a collective. Counts are numbers of elements of `type`, per rank where MPI counts so.
struct CollectiveCall {
  uint32_t kind = BP_BARRIER;  // BP_BARRIER ...
  Comm comm{};
  const void* in = nullptr;
  void* out = nullptr;  // broadcast: the buffer
  uint64_t count = 0;
  Predefined type = kByte;
  Predefined op = kSum;
  int root = 0;
  Blocks* blocks = nullptr;  // v-forms
};

class Api {
 public:
  virtual ~Api() = default;

  virtual const char* abi() const = 0;
  virtual std::string version() const = 0;  // one line
  virtual bool initialized() const = 0;     // also after finalize
  virtual bool finalized() const = 0;

  // Call before others: initialises MPI unless the program has done so. Returns whether this call did. Blocks until the
  // other processes of the job have come.
  virtual bool init() = 0;
  // Whether several threads may call MPI at once.
  virtual bool serves_all_threads() const = 0;
  virtual void finalize() = 0;
  virtual int world_rank() const = 0;
  virtual int world_size() const = 0;
  virtual int tag_upper_bound() const = 0;
  // The largest count of a collective: per rank, and of the blocks of a v-form together.
  virtual uint64_t max_count() const = 0;

  // Collective over the members, which are given by their ranks in MPI's world. Blocks. Communicators return errors.
  virtual Comm create(std::span<const int> world_ranks, int tag) = 0;
  virtual Comm duplicate(Comm comm) = 0;
  virtual void free(Comm comm) = 0;
  // Whether MPI survives the death of processes (ULFM). Operations that need one then fail with BP_PEER_LOST, and
  // MPI_Finalize does not wait for it.
  virtual bool survives_failures() const = 0;
  // Ends the operations of the communicator on all its members. Does nothing without ULFM.
  virtual void revoke(Comm comm) = 0;
  // Whether the communicator was revoked, by any of its members. False without ULFM.
  virtual bool is_revoked(Comm comm) = 0;
  // The lowest rank whose process has failed, as far as MPI knows; else -1.
  virtual int failed_rank(Comm comm) = 0;
  // Lets MPI move what it holds.
  virtual void progress() = 0;

  virtual Request isend(const void* data, uint64_t bytes, int peer, int tag, Comm comm) = 0;
  // From this rank (or kAnySource) with this tag (or kAnyTag). MPI matches in the order of these calls.
  virtual Request irecv(void* data, uint64_t bytes, int peer, int tag, Comm comm) = 0;
  // Has MPI complete an irecv without a message, unless one has matched. The request must still be tested.
  virtual void cancel(Request request) = 0;
  // Takes the oldest message that an irecv would match; nothing: there is none yet. It must then be received. If this
  // throws, a message may be lost.
  virtual std::optional<Message> improbe(int peer, int tag, Comm comm, Envelope* envelope) = 0;
  virtual Request imrecv(void* data, uint64_t bytes, Message message) = 0;
  virtual Request start(const CollectiveCall& call) = 0;
  // Whether the request is complete. Sets it to 0 if MPI has freed it. If this throws and the request is not 0, MPI may
  // still use its memory.
  virtual bool test(Request& request) = 0;
  // The same for an irecv that was not cancelled. Once it is complete: what it has received.
  virtual bool test_receive(Request& request, Envelope* received) = 0;
  // The same for one that was. Nothing: it was cancelled in time.
  virtual bool test_cancelled(Request& request, std::optional<Envelope>* received) = 0;
};

// The functions of an opened library. Throws BP_UNSUPPORTED if one is missing. `max_int_count`: the largest count that
// is passed as an int; less only for tests.
std::unique_ptr<Api> make_api(const Library& library, int max_int_count = std::numeric_limits<int>::max());

}  // namespace backplane::mpi
