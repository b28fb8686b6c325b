// Carries frames to the other ranks over one TCP connection to each, which the SDK has made. Replace this file with
// your transport: send the frames that the messenger returns, and pass received frames to it.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

#include <backplane/sdk/sdk.hpp>

namespace sdk = backplane::sdk;

class AcmeTransport {
 public:
  explicit AcmeTransport(const sdk::Context& context)
      : messenger_(context.rank, context.world_size, [this](int32_t) { poller_.wake(); }),
        sockets_(sdk::connect_all(context, context.options.text("address"))),
        links_(sockets_.size()),
        poller_([this](sdk::Poller::Sleep& sleep) { return progress(sleep); },
                [this](const sdk::Failure& why) { messenger_.abort(why); }) {}

  // Writes the remaining bytes, and waits until the peers have read them: a message whose send is done must arrive.
  ~AcmeTransport() {
    messenger_.flush(kFlushTimeout);
    poller_.stop();
    sdk::close_gently(sockets_, messenger_.aborted() ? 0 : kFlushTimeout);
  }

  sdk::Messenger& messenger() { return messenger_; }

 private:
  static constexpr int64_t kFlushTimeout = 2'000'000'000;  // nanoseconds that destroy waits for slow peers

  // The frame being read from a peer and the frame being written to it.
  struct Link {
    sdk::Messenger::Bytes in = sdk::Messenger::Bytes(sdk::Messenger::kHeadSize);
    sdk::Messenger::Bytes out;
    size_t read = 0;
    size_t written = 0;
  };

  // One round over all peers; returns true if a byte was moved. Runs on the poller's thread only.
  bool progress(sdk::Poller::Sleep& sleep) {
    bool busy = false;
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (messenger_.aborted()) sockets_[peer].reset();  // the peers see the end of the connection
      if (!sockets_[peer]) continue;
      try {
        busy |= read_from(static_cast<int32_t>(peer));
        busy |= write_to(static_cast<int32_t>(peer));
        sleep.watch(sockets_[peer].get(), static_cast<short>(links_[peer].out.empty() ? POLLIN : POLLIN | POLLOUT));
      } catch (const sdk::Failure& why) {
        sockets_[peer].reset();
        messenger_.not_carried(static_cast<int32_t>(peer));
        messenger_.lost(static_cast<int32_t>(peer), why);
        busy = true;
      }
    }
    sleep.until_woken();
    return busy;
  }

  bool read_from(int32_t peer) {
    Link& link = links_[static_cast<size_t>(peer)];
    const int fd = sockets_[static_cast<size_t>(peer)].get();
    const ssize_t got = ::recv(fd, link.in.data() + link.read, link.in.size() - link.read, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
      throw sdk::Failure(BP_PEER_LOST, "acme-id: the connection to rank " + std::to_string(peer) + " is closed", peer,
                         got < 0 ? errno : 0);
    }
    link.read += static_cast<size_t>(got);
    if (link.read == sdk::Messenger::kHeadSize) {
      link.in.resize(sdk::Messenger::frame_size(link.in.data()));
    }
    if (link.read == link.in.size()) {
      messenger_.arrived(peer, link.in);
      link.in.resize(sdk::Messenger::kHeadSize);
      link.read = 0;
    }
    return true;
  }

  bool write_to(int32_t peer) {
    Link& link = links_[static_cast<size_t>(peer)];
    if (link.out.empty() && !messenger_.next(peer, link.out)) return false;
    const size_t left = link.out.size() - link.written;
    const ssize_t sent =
        ::send(sockets_[static_cast<size_t>(peer)].get(), link.out.data() + link.written, left, MSG_NOSIGNAL);
    if (sent < 0) return false;  // full, or closed: reading then finds the remaining bytes and the end of file
    link.written += static_cast<size_t>(sent);
    if (link.written == link.out.size()) {
      link.written = 0;
      if (!messenger_.next(peer, link.out)) link.out.clear();
    }
    return true;
  }

  sdk::Messenger messenger_;
  std::vector<sdk::Descriptor> sockets_;  // by rank; used by the poller's thread until it ends
  std::vector<Link> links_;               // likewise
  sdk::Poller poller_;                    // last: its thread uses the members above
};
