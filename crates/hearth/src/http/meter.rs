//! The one place where handlers ask the [`Backend`](protocol::Backend): what is asked here is entered in the ledger
//! first, and settled before the last piece of the answer goes on.
//!
//! Whoever drops an answer before its end leaves an entry that says it was interrupted: with the tokens of the prompt,
//! and one token of the answer for each piece that was sent, which is never more than the model made; of a request whose
//! turn never came, nothing. What an account computes is cached in a namespace of its own.

use super::body::Head;
use super::{App, providers};
use futures::StreamExt;
use futures::stream::unfold;
use gateway::ledger::{Entry, Opening};
use gateway::price::Price;
use gateway::{Caller, Usage};
use protocol::{
    Delta, DeltaStream, EmbeddingRequest, Embeddings, Error, ErrorKind, GenerateRequest, RerankRequest,
    Scores, cut_short,
};

/// The provider of the models that this process runs.
const LOCAL: &str = "local";

impl App {
    /// Generates text; see the module. A model that is not here is asked for at the provider that has it.
    pub(super) async fn generate(
        &self,
        asking: &Head,
        mut request: GenerateRequest,
    ) -> Result<DeltaStream, Error> {
        let elsewhere = self.elsewhere(&asking.caller.account, &request.model).await?;
        if !elsewhere.is_empty() {
            return providers::generate(self, elsewhere, asking, request).await;
        }
        let caller = &asking.caller;
        request.cache_salt = caller.salt(request.cache_salt.as_deref());
        let answers = (1, request.choices.into(), request.max_tokens);
        let entry = self.enter(caller, &request.model, answers).await?;
        // Who answers here knows of no providers.
        let unknown = if entry.is_none() { self.model(&request.model).err() } else { None };
        let answer = self.backend.generate(request).await.map_err(|error| match unknown {
            Some(unknown) if error.kind == ErrorKind::ModelNotFound => unknown,
            _ => error,
        });
        match (entry, answer) {
            (Some(entry), Ok(answer)) => Ok(metered(entry, answer)),
            (Some(entry), Err(error)) => {
                entry.fail(error.kind.status(), &error.message).await;
                Err(error)
            }
            (None, answer) => answer,
        }
    }

    /// Computes embeddings.
    pub(super) async fn embed(&self, asking: &Head, request: EmbeddingRequest) -> Result<Embeddings, Error> {
        let elsewhere = self.elsewhere(&asking.caller.account, &request.model).await?;
        if !elsewhere.is_empty() {
            return providers::embed(self, elsewhere, asking, request).await;
        }
        let entry =
            self.enter(&asking.caller, &request.model, (request.inputs.len() as u64, 0, None)).await?;
        settled(entry, self.backend.embed(request).await, |done| done.prompt_tokens).await
    }

    /// Scores texts against a query.
    pub(super) async fn rerank(&self, caller: &Caller, request: RerankRequest) -> Result<Scores, Error> {
        let entry = self.enter(caller, &request.model, (request.documents.len() as u64, 0, None)).await?;
        settled(entry, self.backend.rerank(request).await, |done| done.prompt_tokens).await
    }

    /// Opens an entry; none where there is no ledger, or no such model, which the backend says in its own words.
    /// `most`: sequences of prompts, and of answers with their longest.
    async fn enter(
        &self,
        caller: &Caller,
        model: &str,
        most: (u64, u64, Option<u32>),
    ) -> Result<Option<Entry>, Error> {
        let (Some(gateway), Ok(model)) = (&self.gateway, self.model(model)) else { return Ok(None) };
        let (context, (prompts, answers, longest)) = (u64::from(model.context), most);
        let opening = Opening {
            request: uuid::Uuid::now_v7().to_string(),
            caller: caller.clone(),
            provider: LOCAL.to_owned(),
            price: model.price.map(Price::from),
            most: Some((
                context.saturating_mul(prompts),
                longest.map_or(context, u64::from).saturating_mul(answers),
            )),
            model: model.id,
        };
        let mut entry = gateway.enter(opening).await?;
        // An answer says when its turn has come; what comes at once does not.
        if answers == 0 {
            entry.asked();
        }
        Ok(Some(entry))
    }
}

/// Ends the entry of an answer that comes at once.
async fn settled<T>(
    entry: Option<Entry>,
    done: Result<T, Error>,
    tokens: impl FnOnce(&T) -> u32,
) -> Result<T, Error> {
    match (entry, &done) {
        (Some(entry), Ok(answer)) => {
            let usage = Usage { input: tokens(answer).into(), ..Usage::default() };
            entry.settle(Some(usage)).await;
        }
        (Some(entry), Err(error)) => entry.fail(error.kind.status(), &error.message).await,
        (None, _) => {}
    }
    done
}

/// The same answer, whose entry ends with it.
fn metered(entry: Entry, answer: DeltaStream) -> DeltaStream {
    let state = (Some(entry), answer, Usage::default());
    unfold(state, |(mut entry, mut answer, mut seen)| async move {
        let Some(open) = entry.as_mut() else {
            // What ended the entry ends the answer.
            return answer.next().await.map(|delta| (delta, (entry, answer, seen)));
        };
        let delta = answer.next().await;
        match &delta {
            Some(Ok(Delta::Usage(usage))) => {
                if let Some(entry) = entry.take() {
                    entry.settle(Some((*usage).into())).await;
                }
            }
            Some(Ok(Delta::Started { prompt_tokens, cached_tokens })) => {
                seen.input = (*prompt_tokens).into();
                seen.cached_input = Some((*cached_tokens).into());
                open.see(seen);
            }
            Some(Ok(
                Delta::Text { .. }
                | Delta::Reasoning { .. }
                | Delta::ToolCallStart { .. }
                | Delta::ToolCallArguments { .. },
            )) => {
                seen.output += 1;
                open.see(seen);
            }
            Some(Ok(
                Delta::PromptLogprobs(_)
                | Delta::Thought { .. }
                | Delta::MalformedCall { .. }
                | Delta::Finish { .. },
            )) => {}
            Some(Err(error)) => {
                if let Some(entry) = entry.take() {
                    entry.fail(error.kind.status(), &error.message).await;
                }
            }
            None => {
                if let Some(entry) = entry.take() {
                    let error = cut_short();
                    entry.fail(error.kind.status(), &error.message).await;
                }
            }
        }
        delta.map(|delta| (delta, (entry, answer, seen)))
    })
    .boxed()
}
