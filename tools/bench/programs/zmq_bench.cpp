// SPDX-License-Identifier: Apache-2.0
//
// The plugin zmq compared with bare libzmq: two PAIR sockets over TCP. "message": half a round trip. "stream": messages
// back to back until a one-byte reply to the last, per message. "all_reduce": both send, receive and add, the minimum
// for two ranks.
#include <zmq.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "backplane/backplane.hpp"
#include "programs/comparison.hpp"
#include "programs/two_ranks.hpp"

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
Action round_trip(int rank, Bytes& data, const Send& send, const Receive& receive) {
  if (rank == 0) {
    return [&data, send, receive] {
      send(data);
      receive(data);
    };
  }
  return [&data, send, receive] {
    receive(data);
    send(data);
  };
}

// From rank 0 to rank 1, then a reply.
template <typename SendAll, typename Receive, typename Send>
Action stream(int rank, const Scenario& scenario, Bytes& data, Bytes& reply, const SendAll& send_all,
              const Receive& receive, const Send& send) {
  const int count = static_cast<int>(scenario.per_call);
  if (rank == 0) {
    return [count, &data, &reply, send_all, receive] {
      send_all(data, count);
      receive(reply);
    };
  }
  return [count, &data, &reply, receive, send] {
    for (int i = 0; i < count; ++i) receive(data);
    send(reply);
  };
}

// Adds the data of the other rank.
template <typename Send, typename Receive>
Action exchange(Bytes& data, Bytes& other, const Send& send, const Receive& receive) {
  return [&data, &other, send, receive] {
    send(data);
    receive(other);
    std::transform(data.begin(), data.end(), other.begin(), data.begin(), std::plus<uint8_t>());
  };
}

void check_sum(const Action& action, Bytes& data, int rank, const char* who) {
  std::memset(data.data(), 1 + rank, data.size());
  action();
  for (const uint8_t byte : data) {
    if (byte != 3) throw std::runtime_error(std::string("wrong sums from ") + who);
  }
}

// Rank 1 must receive rank 0's pattern, and rank 0 gets it back in a round trip.
void check(const Action& action, Bytes& data, int rank, const char* who) {
  std::memset(data.data(), rank == 0 ? 0x5a : 0, data.size());
  action();
  for (const uint8_t byte : data) {
    if (byte != 0x5a) throw std::runtime_error(std::string("wrong bytes from ") + who);
  }
}

// A call is a round trip of two messages, or a stream of messages.
std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const uint64_t bytes : {4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}) {
    all.push_back({"message", bytes, static_cast<int>(std::clamp<uint64_t>((1 << 20) / bytes, 1, 20)), 2});
  }
  for (const uint64_t bytes : {1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}) {
    all.push_back({"stream", bytes, 1, static_cast<double>(std::clamp<uint64_t>((64 << 20) / bytes, 2, 64))});
  }
  for (const uint64_t bytes : {4, 1 << 10, 64 << 10, 1 << 20, 16 << 20}) {
    all.push_back({"all_reduce", bytes, static_cast<int>(std::clamp<uint64_t>((1 << 20) / bytes, 1, 20)), 1});
  }
  return all;
}

void body(int rank, const std::filesystem::path& directory, const Arguments& arguments) {
  Store store = Store::file((directory / "store").string());
  BarePair bare(rank, store);
  GroupOptions options;
  options.backend = arguments.options.empty() ? "zmq" : "zmq?" + arguments.options;
  options.store = store.with_prefix("group");
  options.rank = rank;
  options.world_size = 2;
  ProcessGroup group = ProcessGroup::create(options);
  const auto bare_send = [&bare](const Bytes& data) { bare.send(data); };
  const auto bare_receive = [&bare](Bytes& data) { bare.receive(data); };
  const auto our_send = [&group, rank](const Bytes& data) { group.send(data, 1 - rank); };
  const auto our_receive = [&group, rank](Bytes& data) { group.recv(data, 1 - rank); };
  const auto bare_send_all = [&bare](const Bytes& data, int count) {
    for (int i = 0; i < count; ++i) bare.send(data);
  };
  const auto our_send_all = [&group, rank](const Bytes& data, int count) {
    std::vector<Work> works;
    for (int i = 0; i < count; ++i) works.push_back(group.isend(data, 1 - rank));
    for (Work& work : works) work.wait();
  };
  std::vector<Outcome> outcomes;
  for (const Scenario& scenario : scenarios()) {
    Bytes data(scenario.bytes);
    if (scenario.what == "all_reduce") {
      Bytes other(scenario.bytes);
      const Action bare_call = exchange(data, other, bare_send, bare_receive);
      const Action our_call = [&group, &data] { group.all_reduce(data); };
      check_sum(bare_call, data, rank, "libzmq");
      check_sum(our_call, data, rank, "the plugin");
      outcomes.push_back(compare(scenario, arguments, group, bare_call, our_call));
      continue;
    }
    Bytes reply(1);
    const bool is_round_trip = scenario.what == "message";
    const Action bare_call = is_round_trip
                                 ? round_trip(rank, data, bare_send, bare_receive)
                                 : stream(rank, scenario, data, reply, bare_send_all, bare_receive, bare_send);
    const Action our_call = is_round_trip ? round_trip(rank, data, our_send, our_receive)
                                          : stream(rank, scenario, data, reply, our_send_all, our_receive, our_send);
    check(bare_call, data, rank, "libzmq");
    check(our_call, data, rank, "the plugin");
    outcomes.push_back(compare(scenario, arguments, group, bare_call, our_call));
  }
  group.barrier();  // waits for the other rank
  if (rank == 0) print("libzmq", outcomes, arguments.json);
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) {
  using namespace backplane::bench;  // NOLINT: main
  const Arguments arguments = parse(argc, argv);
  return on_two_ranks(arguments.pin, [&arguments](int rank, const std::filesystem::path& directory) {
    body(rank, directory, arguments);
  });
}
