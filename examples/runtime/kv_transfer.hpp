// A KV cache on its way from the process that prefills to the one that decodes: a DKVC stream over a socket, layer by
// layer, each layer's keys and then its values. Three things go on at once on the sending side (later layers are
// computed, a layer is encoded, the one before it is sent) and two on the receiving side. The receiver hands a cache
// over when the closing frame has been checked, and says so to the sender; before that there is only an error.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <decant/codec/dkvc_stream.hpp>

#include "channel.hpp"
#include "kv_rows.hpp"
#include "tokenizer.hpp"

namespace runtime {

using decant::bf16;
using Clock = std::chrono::steady_clock;

/// Rows of all layers, [tokens, kv_heads, head_dim] each.
struct KVRows {
  std::vector<std::vector<bf16>> keys;
  std::vector<std::vector<bf16>> values;
  const std::vector<bf16>& of(index_t layer, dkvc::Kind kind) const {
    return (kind == dkvc::Kind::key ? keys : values)[static_cast<std::size_t>(layer)];
  }
};

/// The first token that the prefill gave, behind the tensors: 4 bytes.
inline constexpr std::uint32_t next_token_type = dkvc::fourcc("NEXT");
/// What the receiver answers when it holds the whole cache.
inline constexpr char receipt[4] = {'H', 'A', 'V', 'E'};

/// A link of so many bytes a second, 0: without limit. What is sent at a time arrives when all of it would have.
class Link {
 public:
  explicit Link(double bytes_per_second) : rate_(bytes_per_second) {}

  /// Waits until bytes that were ready at `ready` are through.
  void carry(Clock::time_point ready, index_t bytes) {
    if (rate_ <= 0) return;
    const auto time = std::chrono::duration<double>(static_cast<double>(bytes) / rate_);
    free_ = (ready > free_ ? ready : free_) + std::chrono::duration_cast<Clock::duration>(time);
    std::this_thread::sleep_until(free_);
  }

 private:
  double rate_;
  Clock::time_point free_{};
};

/// The sending side. push() layers from the thread that computes them, then finish().
class KVSender {
 public:
  /// Sends the card. codecs: none, to send plain elements. `fd` stays open and the caller's.
  KVSender(int fd, const dkvc::CacheCard& card, std::optional<KVCodecs<bf16>> codecs, double bandwidth = 0)
      : fd_(fd), tokens_(card.token_count), codecs_(std::move(codecs)), writer_(fd), link_(bandwidth) {
    decant::Cpu cpu;
    const std::vector<std::byte> bytes = dkvc::write_card(card);
    writer_.add_card(cpu, bytes);
    for (int i = 0; i < 3; ++i) spare_.push({});
    encoder_ = std::thread([this] { guard([this] { encode_layers(); }); });
    sender_ = std::thread([this] { guard([this] { send_sections(); }); });
  }
  KVSender(const KVSender&) = delete;
  KVSender& operator=(const KVSender&) = delete;
  ~KVSender() {
    abandon();
    join();
  }

  /// The rows of the next layer. Waits while two are waiting. Raises what went wrong in sending.
  void push(std::vector<bf16> keys, std::vector<bf16> values) {
    if (!layers_.push({std::move(keys), std::move(values)})) fail();
  }

  /// After the last layer: sends the rest and waits for the receipt. decant::Error when the receiver did not get, or
  /// did not accept, all of it.
  void finish(Token next) {
    layers_.close();
    join();
    if (failure_) fail();
    decant::Cpu cpu;
    std::byte bytes[4];
    decant::store_le(bytes, static_cast<std::uint32_t>(next));
    dkvc::SectionData data;
    dkvc::encode_bytes(cpu, next_token_type, View<const std::byte, 1>(bytes, 4), data);
    writer_.add(data);
    writer_.finish();
    char answer[sizeof receipt];
    const ssize_t got = ::recv(fd_, answer, sizeof answer, MSG_WAITALL);
    if (got != sizeof answer || std::memcmp(answer, receipt, sizeof answer) != 0) {
      throw decant::Error("the receiver did not confirm that it has the cache");
    }
  }

  /// Stored bytes of all tensors; after finish().
  index_t stored_bytes() const { return stored_; }

 private:
  struct Layer {
    std::vector<bf16> keys;
    std::vector<bf16> values;
  };
  struct Ready {
    dkvc::SectionData data;
    Clock::time_point since;
  };

  void encode_layers() {
    decant::Cpu cpu;
    for (index_t number = 0;; ++number) {
      const std::optional<Layer> layer = layers_.pop();
      if (!layer) break;
      for (const dkvc::Kind kind : both_kinds) {
        std::optional<dkvc::SectionData> data = spare_.pop();
        if (!data) return;
        const std::vector<bf16>& rows = kind == dkvc::Kind::key ? layer->keys : layer->values;
        const dkvc::Place place{number, kind, 0, tokens_};
        if (codecs_)
          encode(cpu, codecs_->of(kind), place, View<const bf16, 1>(rows), *data);
        else
          encode(cpu, codec::Stored<bf16>{}, place, View<const bf16, 1>(rows), *data);
        if (!ready_.push({std::move(*data), Clock::now()})) return;
      }
    }
    ready_.close();
  }

  void send_sections() {
    while (std::optional<Ready> ready = ready_.pop()) {
      const index_t bytes = ready->data.section.stored_size;
      link_.carry(ready->since, bytes);
      writer_.add(ready->data);
      stored_ += bytes;
      spare_.push(std::move(ready->data));
    }
  }

  /// A thread's work; its error ends the work of the others.
  template <class F>
  void guard(F&& work) {
    try {
      work();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
      abandon();
    }
  }
  void abandon() {
    layers_.abandon();
    ready_.abandon();
    spare_.abandon();
  }
  void join() {
    if (encoder_.joinable()) encoder_.join();
    if (sender_.joinable()) sender_.join();
  }
  [[noreturn]] void fail() {
    join();
    if (failure_) std::rethrow_exception(failure_);
    throw decant::Error("the transfer is over");
  }

  int fd_;
  index_t tokens_;
  std::optional<KVCodecs<bf16>> codecs_;
  dkvc::FrameWriter writer_;
  Link link_;
  Channel<Layer> layers_{2};
  Channel<Ready> ready_{3};
  Channel<dkvc::SectionData> spare_{3};
  index_t stored_ = 0;
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::thread encoder_;
  std::thread sender_;
};

/// A whole cache, as it was sent.
struct ReceivedKV {
  dkvc::CacheCard card;
  KVRows rows;
  Token next = 0;
  double seconds = 0;  // from the first byte to the last checked one
};

namespace detail {

/// Receives and checks sections on the calling thread and decodes them on another.
class KVReceiver {
 public:
  explicit KVReceiver(int fd, const dkvc::Limits& limits) : limits_(limits), reader_(fd, limits) {}

  /// accept(card) raises when the cache is not wanted; nothing larger than a card has been received then.
  template <class Accept>
  ReceivedKV receive(Accept&& accept) {
    const auto start = Clock::now();
    decant::Cpu cpu;
    dkvc::SectionData data;
    if (!reader_.next(cpu, data) || !data.section.is_meta()) bad_format("the stream", "a card first", "none");
    cache_.card = dkvc::read_card(dkvc::payload(data.section, data.stored()), limits_);
    shape_ = shape_of(cache_.card);
    if (shape_.dtype != DType::bf16) bad_format("the card's dtype", "bf16", decant::name(shape_.dtype));
    accept(cache_.card);

    for (int i = 0; i < 3; ++i) spare_.push({});
    std::thread decoder([this] { decode_sections(); });
    try {
      receive_sections(cpu);
    } catch (...) {
      arrived_.abandon();
      spare_.abandon();
      decoder.join();
      throw;
    }
    arrived_.close();
    decoder.join();
    if (failure_) std::rethrow_exception(failure_);
    cache_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return std::move(cache_);
  }

 private:
  void receive_sections(decant::Cpu& cpu) {
    index_t tensors = 0;
    bool has_next = false;
    while (std::optional<dkvc::SectionData> data = spare_.pop()) {
      if (!reader_.next(cpu, *data)) {
        const bool whole = tensors == 2 * shape_.layers && has_next;
        if (!whole)
          bad_format("the stream", std::to_string(2 * shape_.layers) + " tensors and a token",
                     std::to_string(tensors) + " tensors");
        return;
      }
      const dkvc::Section& s = data->section;
      if (s.is_tensor()) {
        check(s, tensors++);
        arrived_.push(std::move(*data));
      } else {
        if (s.type == next_token_type) read_next(*data, has_next);
        spare_.push(std::move(*data));
      }
    }
    // No spare: the decoder has failed and says why.
  }

  /// Tensor `number` must be all rows of the layer and kind whose turn it is.
  void check(const dkvc::Section& s, index_t number) const {
    const bool fits = dkvc::check(cache_.card, s) == dkvc::Mismatch::none && s.layer == number / 2 &&
                      s.kind == both_kinds[number % 2] && s.token_begin == 0 && s.token_count == shape_.tokens &&
                      s.element_count == shape_.elements(s.kind);
    if (!fits) bad_format("tensor " + std::to_string(number), "all rows of its layer, as the card says", "others");
  }

  void read_next(const dkvc::SectionData& data, bool& has_next) {
    const View<const std::byte, 1> bytes = dkvc::payload(data.section, data.stored());
    const bool fits = !has_next && bytes.extent(0) == 4 && data.section.check == dkvc::Check::crc32c;
    if (!fits) bad_format("the next token", "4 checked bytes, once", std::to_string(bytes.extent(0)));
    cache_.next = static_cast<Token>(decant::load_le<std::uint32_t>(bytes.data()));
    has_next = true;
  }

  void decode_sections() {
    try {
      decant::Cpu cpu;
      while (std::optional<dkvc::SectionData> data = arrived_.pop()) {
        const dkvc::Section& s = data->section;
        std::vector<bf16> rows(static_cast<std::size_t>(s.element_count));
        dkvc::decode(cpu, s, data->stored(), View<bf16, 1>(rows), dkvc::Verify::no);  // next() has verified it
        (s.kind == dkvc::Kind::key ? cache_.rows.keys : cache_.rows.values).push_back(std::move(rows));
        spare_.push(std::move(*data));
      }
    } catch (...) {
      failure_ = std::current_exception();
      arrived_.abandon();
      spare_.abandon();
    }
  }

  dkvc::Limits limits_;
  dkvc::FrameReader reader_;
  KVShape shape_;
  ReceivedKV cache_;
  Channel<dkvc::SectionData> arrived_{3};
  Channel<dkvc::SectionData> spare_{3};
  std::exception_ptr failure_;
};

}  // namespace detail

/// Receives one cache from `fd`, which stays open and the caller's. Returns all of it, bit for bit, or raises
/// decant::Error: the sender is gone, sent something else, or accept(card) raised. The sender learns which.
template <class Accept>
ReceivedKV receive_kv(int fd, Accept&& accept, const dkvc::Limits& limits = {}) {
  ReceivedKV cache = detail::KVReceiver(fd, limits).receive(accept);
  // Should the sender be gone by now, what it gave is good all the same: an error is nothing to us.
  [[maybe_unused]] const ssize_t sent = ::send(fd, receipt, sizeof receipt, MSG_NOSIGNAL);
  return cache;
}

}  // namespace runtime
