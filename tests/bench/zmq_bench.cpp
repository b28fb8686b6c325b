// SPDX-License-Identifier: Apache-2.0
//
// Messages through the plugin zmq against bare libzmq: two PAIR sockets over tcp. Time is that of one message, half a
// round trip.
#include <zmq.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "backplane/backplane.hpp"
#include "bench/contest.hpp"
#include "bench/two_ranks.hpp"

namespace backplane::bench {
namespace {

using Bytes = std::vector<uint8_t>;

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string(what) + ": " + zmq_strerror(zmq_errno()));
}

// One end of a connection between two PAIR sockets.
class BarePair {
 public:
  BarePair(int rank, Store& store) {
    const int no_linger = 0;
    zmq_setsockopt(socket_.get(), ZMQ_LINGER, &no_linger, sizeof no_linger);
    if (rank == 0) {
      require(zmq_bind(socket_.get(), "tcp://127.0.0.1:*") == 0, "zmq_bind");
      char endpoint[64] = {};
      size_t size = sizeof endpoint;
      require(zmq_getsockopt(socket_.get(), ZMQ_LAST_ENDPOINT, endpoint, &size) == 0, "zmq_getsockopt");
      store.set("endpoint", endpoint);
    } else {
      require(zmq_connect(socket_.get(), store.get("endpoint").c_str()) == 0, "zmq_connect");
    }
  }

  void send(const Bytes& data) {
    require(zmq_send(socket_.get(), data.data(), data.size(), 0) == static_cast<int>(data.size()), "zmq_send");
  }
  void receive(Bytes& data) {
    require(zmq_recv(socket_.get(), data.data(), data.size(), 0) == static_cast<int>(data.size()), "zmq_recv");
  }

 private:
  const std::unique_ptr<void, int (*)(void*)> context_{zmq_ctx_new(), zmq_ctx_term};
  const std::unique_ptr<void, int (*)(void*)> socket_{zmq_socket(context_.get(), ZMQ_PAIR), zmq_close};
};

// From rank 0 to rank 1 and back.
template <typename Send, typename Receive>
Action round_trip(int rank, const Send& send, const Receive& receive) {
  if (rank == 0) {
    return [send, receive] {
      send();
      receive();
    };
  }
  return [send, receive] {
    receive();
    send();
  };
}

// Rank 1 sends back what it got: rank 0's pattern.
void check(const Action& action, Bytes& data, int rank, const char* who) {
  std::memset(data.data(), rank == 0 ? 0x5a : 0, data.size());
  action();
  for (const uint8_t byte : data) {
    if (byte != 0x5a) throw std::runtime_error(std::string("wrong bytes from ") + who);
  }
}

void body(int rank, const std::filesystem::path& directory, const Arguments& arguments) {
  Store store = Store::file((directory / "store").string());
  BarePair bare(rank, store);
  GroupOptions options;
  options.backend = "zmq";
  options.store = store.with_prefix("group");
  options.rank = rank;
  options.world_size = 2;
  ProcessGroup group = ProcessGroup::create(options);
  std::vector<Outcome> outcomes;
  for (const Subject& subject : {Subject{"message", 4, 20, 2}, Subject{"message", 64 << 10, 10, 2},
                                 Subject{"message", 1 << 20, 2, 2}, Subject{"message", 64 << 20, 1, 2}}) {
    Bytes data(subject.bytes);
    const Action bare_call = round_trip(
        rank, [&bare, &data] { bare.send(data); }, [&bare, &data] { bare.receive(data); });
    const Action our_call = round_trip(
        rank, [&group, &data, rank] { group.send(data, 1 - rank); },
        [&group, &data, rank] { group.recv(data, 1 - rank); });
    check(bare_call, data, rank, "libzmq");
    check(our_call, data, rank, "the plugin");
    outcomes.push_back(contest(subject, arguments, group, bare_call, our_call));
  }
  group.barrier();  // nobody leaves before the other is done
  if (rank == 0) print("libzmq", outcomes, arguments.json);
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) {
  using namespace backplane::bench;  // NOLINT: this is its main
  const Arguments arguments = parse(argc, argv);
  return on_two_ranks(
      [&arguments](int rank, const std::filesystem::path& directory) { body(rank, directory, arguments); });
}
