// SPDX-License-Identifier: Apache-2.0
//
// Two ranks exchange a number, first with blocking calls, then with asynchronous ones.
//
//     backplane run -n 2 --backend gloo ping_pong
#include <backplane/backplane.hpp>
#include <cstdio>
#include <exception>
#include <string>

namespace bp = backplane;

namespace {

// Tags distinguish the two directions.
constexpr uint32_t kPing = 1;
constexpr uint32_t kPong = 2;

void show(int rank, const char* step, double held) {
  std::printf("rank %d  %-22s holds %g\n", rank, step, held);
  std::fflush(stdout);
}

void blocking(bp::ProcessGroup& group) {
  double held = 0;
  if (group.rank() == 0) {
    held = 1;
    show(0, "start", held);
    group.send(bp::as_buffer(held), 1, kPing);
    show(0, "after send", held);
    group.recv(bp::as_buffer(held), 1, kPong);
    show(0, "after recv", held);
  } else {
    show(1, "start", held);
    // Names the sender, because not every backend can receive from any rank.
    const int sender = group.recv(bp::as_buffer(held), 0, kPing).received().source;
    show(1, ("after recv from rank " + std::to_string(sender)).c_str(), held);
    held += 1;
    group.send(bp::as_buffer(held), 0, kPong);
    show(1, "after adding 1, send", held);
  }
}

void not_blocking(bp::ProcessGroup& group) {
  double held = 0;
  if (group.rank() == 0) {
    held = 1;
    double answer = 0;
    // Posts the receive first, so that the answer needs no intermediate buffer.
    bp::Work pong = group.irecv(bp::as_buffer(answer), 1, kPong);
    bp::Work ping = group.isend(bp::as_buffer(held), 1, kPing);
    ping.wait();
    show(0, "after isend, wait", held);
    pong.wait();
    held = answer;
    show(0, "after irecv, wait", held);
  } else {
    bp::Work ping = group.irecv(bp::as_buffer(held), 0, kPing);
    ping.wait();
    show(1, "after irecv, wait", held);
    held += 1;
    bp::Work pong = group.isend(bp::as_buffer(held), 0, kPong);
    pong.wait();  // `held` must not change before this
    show(1, "after isend, wait", held);
  }
}

void play() {
  bp::ProcessGroup group = bp::init_process_group();
  if (group.world_size() != 2) {
    throw std::runtime_error("ping-pong needs two ranks, not " + std::to_string(group.world_size()));
  }
  if (group.rank() == 0) std::printf("send and recv over %s\n", group.backend().c_str());
  blocking(group);
  group.barrier();
  if (group.rank() == 0) std::printf("isend and irecv over %s\n", group.backend().c_str());
  not_blocking(group);
  bp::destroy_process_group();
}

}  // namespace

int main() {
  try {
    play();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ping_pong: %s\n", e.what());
    return 1;
  }
}
